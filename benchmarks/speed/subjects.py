"""What is measured side by side: direct, nginx, the floor, Transom in its modes, and LiteLLM's proxy.

Rules. Each of them is told nothing but its port, its upstream and what it needs to answer, and runs as one process, on
the core that is meant for the subjects; upstreams run where the load does.
What is absent is said in one line and left out of the tables. LiteLLM is installed into a virtual environment of its
own, at one version, the first time that it is wanted.
"""

import http.client
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from benchmarks.speed.options import Options
from benchmarks.speed.processes import HOST, ROOT, Absent, Server, free_port, program, started
from benchmarks.speed.upstream import completion

LITELLM: Final = "litellm[proxy]==1.106.12"
"""The version that figures are of: another one is another subject."""

LITELLM_SETTINGS: Final = {"dangerously_permit_weak_or_unset_master_key": True}
"""Its `general_settings` without keys and a database."""

LITELLM_ENVIRONMENT: Final = MappingProxyType(
    {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
    }
)

LITELLM_FOLDER: Final = ROOT / ".venv-litellm"

_NGINX: Final = """
daemon off; master_process off; pid {folder}/nginx-{port}.pid; error_log stderr;
events {{ worker_connections 8192; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000; keepalive_timeout 600s;
  client_max_body_size 0; client_body_buffer_size 8m;
  client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi; uwsgi_temp_path {folder}/nginx-uwsgi; scgi_temp_path {folder}/nginx-scgi;
  {rest}
}}
"""
_NGINX_ANSWERS: Final = """
  server {{
    listen {host}:{port} backlog=1024; default_type application/json;
    location / {{ return 200 '{answer}'; }}
  }}
"""
_NGINX_RELAYS: Final = """
  upstream behind {{ server {host}:{upstream}; keepalive 1024; keepalive_requests 1000000000; keepalive_timeout 600s; }}
  server {{
    listen {host}:{port} backlog=1024;
    location / {{
      proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
"""


def nginx_that_answers(port: int, folder: Path) -> str:
    """The configuration of an upstream that answers every request with the same completion."""
    answer = completion(150).decode().replace("'", "\\'")
    rest = _NGINX_ANSWERS.format(host=HOST, port=port, answer=answer)
    return _NGINX.format(folder=folder, port=port, rest=rest)


def nginx_that_relays(port: int, folder: Path, upstream: int) -> str:
    """The configuration of a pass-through: connections are kept, and an answer goes on as it comes."""
    rest = _NGINX_RELAYS.format(host=HOST, port=port, upstream=upstream)
    return _NGINX.format(folder=folder, port=port, rest=rest)


class Stage:
    """The servers of one measurement, which end with it."""

    def __init__(self, options: Options) -> None:
        self._without = frozenset(options.without)
        self._core = options.core
        self._stack = ExitStack()
        self._folder = Path()

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="transom-speed-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- upstreams --------------------------------------------------------------------------------------------

    def fixed_upstream(self) -> Server:
        """One that answers at once, whatever it is sent. Raises Absent."""
        return self._nginx("upstream", nginx_that_answers, core=None)

    def upstream(self) -> Server:
        """One that reads what it is sent, and streams."""
        return self._python("upstream", "benchmarks.speed.upstream", core=None)

    # --- subjects ---------------------------------------------------------------------------------------------

    def wanted(self, makers: Mapping[str, Callable[[], Server]], *, tells: bool = True) -> list[Server]:
        """Those of the subjects that are there; of each other one a line says why it is left out, if it `tells`."""
        made = []
        for name, make in makers.items():
            if name in self._without:
                continue
            try:
                made.append(make())
            except Absent as reason:
                if tells:
                    print(f"{name} is left out: {reason}", flush=True)
        return made

    def direct(self, upstream: Server) -> Server:
        """The upstream itself; whatever is between is none."""
        return Server("direct", upstream.port, None)

    def nginx(self, upstream: Server) -> Server:
        """nginx as a pass-through. Raises Absent."""
        return self._nginx("nginx", partial(nginx_that_relays, upstream=upstream.port), core=self._core)

    def floor(self, upstream: Server) -> Server:
        """The least that a relay in aiohttp does."""
        return self._python("floor", "benchmarks.speed.floor", str(upstream.port), core=self._core)

    def transom(self, upstream: Server, name: str, models: Sequence[Mapping[str, object]]) -> Server:
        """Transom with these rules for models, and the vocabulary at hand."""
        port = free_port()
        config = {
            "listen": f"{HOST}:{port}",
            "upstream": {"base_url": f"http://{HOST}:{upstream.port}/v1"},
            "models": models,
        }
        file = self._written(f"{name}.yaml", json.dumps(config))  # JSON is YAML
        command = (sys.executable, "-m", "proxy", "serve", "--config", str(file))
        server = self._started(name, command, port, self._core)
        asked = {"model": "bench", "messages": [{"role": "user", "content": "Are you ready?"}]}
        post(server.port, json.dumps(asked).encode(), path="/-/measure")  # waits until tokens can be counted
        return server

    def litellm(self, upstream: Server) -> Server:
        """LiteLLM's proxy, without the keys and the database that it can be run with. Raises Absent."""
        executable = litellm_program(LITELLM_FOLDER)
        port = free_port()
        behind = {"model": "openai/bench", "api_base": f"http://{HOST}:{upstream.port}/v1", "api_key": "none"}
        config = {
            "model_list": [{"model_name": "bench", "litellm_params": behind}],
            "general_settings": LITELLM_SETTINGS,
        }
        file = self._written("litellm.yaml", json.dumps(config))
        command = (str(executable), "--config", str(file), "--host", HOST, "--port", str(port))
        return self._started("litellm", command, port, self._core, LITELLM_ENVIRONMENT)

    # --- how they are started ---------------------------------------------------------------------------------

    def _nginx(self, name: str, configuration: Callable[[int, Path], str], *, core: int | None) -> Server:
        executable, port = program("nginx", "nginx-light"), free_port()
        file = self._written(f"nginx-{port}.conf", configuration(port, self._folder))
        command = (executable, "-c", str(file), "-p", str(self._folder))
        return self._started(name, command, port, core)

    def _python(self, name: str, module: str, *words: str, core: int | None) -> Server:
        port = free_port()
        return self._started(name, (sys.executable, "-m", module, str(port), *words), port, core)

    def _started(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        core: int | None,
        added: Mapping[str, str] | None = None,
    ) -> Server:
        server = started(name, command, port, self._folder, core=core, added=added)
        return self._stack.enter_context(server)

    def _written(self, name: str, text: str) -> Path:
        file = self._folder / name
        file.write_text(text, encoding="utf-8")
        return file


def post(port: int, body: bytes, path: str = "/v1/chat/completions") -> bytes:
    """The answer to one request on a connection of its own, which has to be a good one."""
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, f"answered {answer.status}: {said[:500]!r}"
    return said


def litellm_program(folder: Path, requirement: str = LITELLM) -> Path:
    """LiteLLM's command in a virtual environment, which is made if it is not there. Raises Absent."""
    executable, stamp = folder / "bin" / "litellm", folder / "installed"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == requirement:
        return executable
    print(f"Installing {requirement} into {folder}: some 750 MB, and minutes ...", flush=True)
    python = (sys.executable, "-m")
    make = (*python, "venv", "--clear", "--without-pip", str(folder))
    pip = (*python, "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check")
    for command in (make, (*pip, "install", "--quiet", "--no-input", requirement)):
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        if outcome.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            errors = [line for line in outcome.stderr.splitlines() if line.startswith("ERROR")]
            raise Absent(f"{requirement} cannot be installed: {(errors or [outcome.stderr.strip()])[-1]}")
    stamp.write_text(requirement, encoding="utf-8")
    return executable
