"""The page at `/-/`: one document that needs nothing else, put together from three files when the process starts.

Rules. The document holds no data and is the same for everybody. It loads nothing from anywhere, runs no script and
takes no style but its own, by their digests, and no text becomes markup in it (Trusted Types). Another site can neither
show it in a frame nor send a form of its.
"""

import base64
import hashlib
from importlib import resources
from typing import Final

CONTENT_TYPE: Final = "text/html; charset=utf-8"


def _read(name: str) -> str:
    return resources.files("proxy.edge").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_STYLE: Final = _read("page.css")
_SCRIPT: Final = _read("page.js")

DOCUMENT: Final = _read("page.html").replace("/* style */", _STYLE).replace("/* script */", _SCRIPT).encode()

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_digest(_STYLE)}",
        f"script-src {_digest(_SCRIPT)}",
        "connect-src 'self'",
        "img-src data:",  # the icon
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

FIELDS: Final = (
    f"Content-Security-Policy: {POLICY}\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Cache-Control: no-cache\r\n"
).encode()
