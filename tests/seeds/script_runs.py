"""Run what the seeds show: scripts by Python, commands by a shell, each in its own folder.

torch takes two seconds to load, so one process loads it and waits; each script runs in a fork of it
as `__main__`, with an exit code, its own output and what was registered for its end.

    python script_runs.py       serves: a line of JSON in for each script, a line with its end out
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

__all__ = ["Ended", "run_script", "run_shell"]

_REPOSITORY = Path(__file__).parents[2]
_SOURCES = (str(_REPOSITORY / "src"), str(_REPOSITORY / "compat" / "src"))
_TIMEOUT = 120


class Ended(NamedTuple):
    """How a script or a command ended, and what it said."""

    code: int
    out: str
    err: str


def run_script(
    text: str,
    folder: Path,
    *,
    name: str = "script.py",
    paths: Sequence[Path] = (),
    has_npu: bool = False,
) -> Ended:
    """Write a script into a folder and run it there.

    Args:
        text: the script.
        folder: where it is written and run.
        name: of its file.
        paths: what stands in front of Python's path, as by PYTHONPATH.
        has_npu: whether torch has a device of that name.
    """
    (folder / name).write_text(text, encoding="utf-8")
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    asked = {
        "folder": str(folder),
        "script": name,
        "paths": [str(path) for path in paths],
        "has_npu": has_npu,
    }
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the process that runs scripts has died"
    out, err = (folder / f"{name}.{kind}" for kind in ("out", "err"))
    ended = Ended(json.loads(answer), out.read_text(), err.read_text())
    out.unlink()
    err.unlink()
    return ended


def run_shell(text: str, folder: Path, *, environment: Mapping[str, str] | None = None) -> Ended:
    """Run commands by a shell in a folder, with the `python` and `msprobe` of these tests."""
    answer = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=folder,
        env=_environment() | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    return Ended(answer.returncode, answer.stdout, answer.stderr)


def _environment() -> dict[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    # The commands are those of this very state, wherever they are installed from.
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sources = os.pathsep.join((*_SOURCES, *(one for one in known if one not in ("", *_SOURCES))))
    return os.environ | {"PATH": path, "PYTHONPATH": sources}


_servers: list[subprocess.Popen[str]] = []


def _server() -> subprocess.Popen[str]:
    if not _servers:
        server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tempfile.gettempdir(),
            env=_environment() | {"OMP_NUM_THREADS": "1"},
        )
        _servers.append(server)
        atexit.register(_end, server)
    return _servers[0]


def _end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.stdout.close()
    server.wait()


def _serve() -> dict[str, object] | None:
    """Fork for each script that is asked for; returns it in the fork, None at the end of it all."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            asked: dict[str, object] = json.loads(line)
            return asked
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return None


def _become(asked: dict[str, object]) -> str:
    """Make this process what Python is when it has been told to run a script."""
    # What hangs ends by a signal, and whoever waits for it goes on.
    signal.alarm(_TIMEOUT)
    folder, script = str(asked["folder"]), str(asked["script"])
    os.chdir(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{script}.{kind}", flags, 0o644)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # In place of this file's folder.
    sys.path[:1] = [folder, *asked["paths"]]  # type: ignore[misc]
    sys.argv = [script]
    return script


def _run(script: str) -> int:
    """Run a script and return its exit code, with what Python says of an error on stderr."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    except BaseException:  # noqa: BLE001 - told as Python tells it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _end_as_python(code: int) -> NoReturn:
    """End as Python does, but leave the memory to the system, which takes a second with torch."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import torch
    import torch.utils.data  # noqa: F401 - it takes a while, too

    import tensorprobe

    assert tensorprobe.PrecisionDebugger is not None
    from standin_npu import install_npu

    wanted = _serve()
    if wanted is not None:
        own = _become(wanted)
        if wanted["has_npu"]:
            install_npu()
        _end_as_python(_run(own))
