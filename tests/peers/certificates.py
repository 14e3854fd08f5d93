"""Certificates that an authority of the test's own has signed, and what servers and clients need of them.

Rules. Each call makes new ones, which nobody else trusts. They are good for the names `localhost` and 127.0.0.1.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Paths: the authority, a certificate that it has signed, the key of that one, and both in one file."""

    ca: Path
    certificate: Path
    key: Path
    both: Path


def pem_files(folder: Path, name: str = "made") -> PemFiles:
    """New files in this folder, whose names begin with `name`."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = PemFiles(*(folder / f"{name}-{kind}.pem" for kind in ("ca", "certificate", "key", "both")))
    authority.cert_pem.write_to_path(files.ca)
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    issued.private_key_and_cert_chain_pem.write_to_path(files.both)
    return files


def serving(files: PemFiles, *, asks_clients: bool = False) -> ssl.SSLContext:
    """A server's context; `asks_clients`: it takes only clients whose certificate the same authority has signed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    if asks_clients:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
