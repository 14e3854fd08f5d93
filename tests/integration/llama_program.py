"""llama.cpp's own HTTP server as a program: `python llama_program.py FILE NAME CONTEXT SLOTS`.

Rules. It listens on a free port of the loopback interface alone, and writes its address in one line when it serves. It
ends with its standard input, so that it cannot outlive whoever started it.
"""

import os
import sys

import xllamacpp

THREADS = 2


def main(file: str, name: str, context: int, slots: int) -> None:
    """Serve the model in a file, by this name, until the standard input ends; slots share out the context's tokens."""
    options = xllamacpp.CommonParams()
    options.model.path = file
    options.model_alias = {name}
    options.hostnames = ["127.0.0.1"]
    options.port = 0
    options.n_ctx = context
    options.n_parallel = slots
    options.use_jinja = True
    options.endpoint_slots = True
    options.endpoint_metrics = True
    options.ui = False
    options.cpuparams.n_threads = THREADS
    options.cpuparams_batch.n_threads = THREADS
    server = xllamacpp.Server(options)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # its threads are still waiting for requests


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
