"""Scripts in processes of their own that need not import torch: it takes longer than most of them.

    run_warm(code) ─► a process that imported torch, and nothing of ours ─► a fork of it for each

A fork runs the script as `python -c` would: as `__main__`, with arguments and an environment of
its own, and ends as any Python does. A test that needs an interpreter without torch, or a process
that it can signal while that runs, starts one itself.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

__all__ = ["run_warm"]

_SERVER = """
import json, os, sys
import torch
for line in sys.stdin:
    order = json.loads(line)
    if child := os.fork():
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    for number, name in enumerate(("in", "out", "error")):
        file = os.open(order[name], os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv[1:] = order["words"]
    code = compile(order["code"], "<string>", "exec")
    del line, child, order, number, name, file, json
    break
else:
    sys.exit()
exec(code)
"""


def run_warm(
    code: str, *words: object, environment: Mapping[str, str] | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a script as `subprocess.run([sys.executable, "-c", code, *words])` does."""
    with tempfile.TemporaryDirectory() as folder:
        out, error = Path(folder, "out"), Path(folder, "error")
        out.touch()
        error.touch()
        order = {
            "code": code,
            "words": [str(word) for word in words],
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.getcwd(),
            "in": os.devnull,
            "out": str(out),
            "error": str(error),
        }
        server = _server(os.getpid())
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        done = subprocess.CompletedProcess(
            [sys.executable, "-c", code, *order["words"]],
            os.waitstatus_to_exitcode(status),
            out.read_text(),
            error.read_text(),
        )
    if check:
        assert done.returncode == 0, (done.returncode, done.stderr)
    return done


@cache
def _server(_process: int) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.kill)
    return server
