"""A real nginx before several proxies, with the configuration that the page for operators shows.

Rules. The page's text is used as it stands, but for its addresses and the files of its certificate. Around it is no
more than nginx needs to run here; its other settings are at their defaults, as they are on an operator's machine.
Without nginx the test is skipped with that reason; where CI=true it fails.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from grp import getgrgid
from pathlib import Path
from pwd import getpwuid
from typing import Final

from benchmarks.speed.processes import HOST, Absent, free_port, started
from benchmarks.speed.processes import program as executable
from tests.docs.pages import blocks
from tests.needs import lacks
from tests.peers.certificates import PemFiles

_AROUND: Final = """
daemon off; user {user} {group}; worker_processes 2; pid {folder}/nginx.pid; error_log stderr;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {shown}
}}
"""
_SHOWN_PORTS: Final = ("8787", "8788", "8789")


def shown() -> str:
    """The configuration on the page."""
    (block,) = blocks("nginx")
    return block.text


@contextmanager
def nginx(folder: Path, files: PemFiles, ports: Sequence[int]) -> Iterator[str]:
    """The page's nginx before proxies on these ports, for as long as this lasts; its URL."""
    try:
        command, port = executable("nginx", "nginx-light"), free_port()
    except Absent as missing:
        lacks("there is no nginx", str(missing))
    text = shown()
    for named, real in zip(_SHOWN_PORTS, ports, strict=True):
        text = text.replace(f"{HOST}:{named}", f"{HOST}:{real}")
    text = text.replace("listen 443", f"listen {HOST}:{port}")
    text = re.sub(r"(ssl_certificate ) *\S+;", rf"\1{files.certificate};", text)
    text = re.sub(r"(ssl_certificate_key ) *\S+;", rf"\1{files.key};", text)
    file = folder / "nginx.conf"
    user, group = (
        getpwuid(os.getuid()).pw_name,
        getgrgid(os.getgid()).gr_name,
    )  # it has to reach the test's folder
    around = _AROUND.format(folder=folder, shown=text, user=user, group=group)
    file.write_text(around, encoding="utf-8")
    with started("nginx", (command, "-c", str(file), "-p", str(folder)), port, folder):
        yield f"https://{HOST}:{port}"
