"""Files of certificates and a switch -> the context of a secure connection.

Rules. What is not switched off is verified. A file that cannot be used is told with the option that names it, before
anything is connected; nothing of what a file holds is ever repeated. Nobody is asked for a password.
"""

import ssl
from collections.abc import Mapping
from typing import Any, Final

from proxy.config.values import Tls

_NEEDS_PEM: Final = "holds no certificate; a file in PEM form has a line -----BEGIN CERTIFICATE-----"


def context(options: Tls) -> ssl.SSLContext | None:
    """What the options say; None where they say nothing and the defaults hold. Raises OSError for unusable files."""
    if options == Tls():
        return None
    made = ssl.create_default_context(cafile=options.ca_file)
    made.set_alpn_protocols(["http/1.1"])
    if options.cert_file is not None:
        made.load_cert_chain(options.cert_file, options.key_file, password=_no_password)
    if not options.verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def problem(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first option of a `tls` section that cannot be used, and why."""
    options = Tls(**values)
    if options.key_file is not None and options.cert_file is None:
        return "key_file", "is of no use without the certificate in cert_file"
    return _file_problem(options) or _key_problem(options)


def _file_problem(options: Tls) -> tuple[str, str] | None:
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(options, name)
        if path is None:
            continue
        try:
            with open(path, "rb"):
                pass
            if name != "key_file":
                ssl.create_default_context(cafile=path)
        except ssl.SSLError:
            return name, _NEEDS_PEM
        except OSError as error:
            return name, f"cannot be read: {error.strerror}"
    return None


def _key_problem(options: Tls) -> tuple[str, str] | None:
    name = "cert_file" if options.key_file is None else "key_file"
    try:
        context(options)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return name, "holds a key that is not the one of the certificate in cert_file"
        return name, "holds no private key in PEM form, or one that is protected by a password"
    return None


def _no_password() -> str:
    return ""
