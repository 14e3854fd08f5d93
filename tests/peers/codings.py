"""Bodies in every content coding that clients and servers use, made by the libraries' own encoders.

Rules. A name is a field's value as it is sent; codings are applied in the order in which it names them.
"""

import gzip
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import brotli
import zstandard


def bare_deflate(data: bytes) -> bytes:
    """Deflate without the two bytes before it that RFC 9110 asks for, as some send it."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    """One frame, with a checksum, so that damage shows."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def br(data: bytes) -> bytes:
    return bytes(brotli.compress(data, quality=5))


CODECS: Final[Mapping[str, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        "gzip": gzip.compress,
        "x-gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": br,
        "zstd": zstd,
        "identity": bytes,
    }
)

VALUES: Final = (*CODECS, "GZip", "gzip, br", " zstd ,\tgzip", "gzip,identity,, deflate", "br, gzip, zstd")
"""Values of a Content-Encoding field."""


def encode(value: str, data: bytes) -> bytes:
    """The data in these codings."""
    for name in filter(None, (each.strip().lower() for each in value.split(","))):
        data = CODECS[name](data)
    return data


def names(value: str) -> tuple[bytes, ...]:
    """The codings that such a value names, without those that are none."""
    every = (each.strip().lower() for each in value.split(","))
    return tuple(each.encode() for each in every if each not in ("", "identity"))
