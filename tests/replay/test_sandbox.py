"""What a process that makes recorded calls cannot do, whatever a call makes of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprobe.replay.sandbox import clean_environment

CONFINED = """
import ctypes, os, signal, socket, subprocess, sys, threading
import torch
from tensorprobe.replay.sandbox import confine

# One that began before must not be a way around it.
begun, go, early = threading.Event(), threading.Event(), []
def begin_early():
    begun.set(); go.wait()
    early.append(os.system("touch PWNED"))
older = threading.Thread(target=begin_early)
older.start(); begun.wait()
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
confine(memory=3 << 30, writes_to=None, is_closed=True)
tries = {
    "fork": os.fork,
    "system": lambda: os.system("touch PWNED"),
    "spawn": lambda: subprocess.run(["touch", "PWNED"]),
    "exec": lambda: os.execv("/usr/bin/touch", ["touch", "PWNED"]),
    "connect": lambda: socket.create_connection(("127.0.0.1", 9), 1),
    "signal": lambda: os.kill(os.getppid(), 0),
    "memory": lambda: bytearray(4 << 30),
    "tensor": lambda: torch.zeros(1 << 30),
    "file": lambda: open("large", "wb").write(bytes(1 << 25)),
    "elsewhere": lambda: open("../PWNED", "w"),
    "link": lambda: os.symlink("/", "../PWNED"),
    "remove": lambda: os.unlink("../victim"),
    "pidfd": lambda: os.pidfd_open(os.getppid()),
    "thread of another": lambda: call(234, os.getppid(), os.getppid(), 0),
    "ring": lambda: call(425, 8, ctypes.create_string_buffer(120)),
    "secrets": lambda: open(f"/proc/{os.getppid()}/environ", "rb").read(),
    "mind": lambda: open(f"/proc/{os.getppid()}/mem", "rb"),
}
for name, try_it in tries.items():
    try:
        print(name.replace(" ", "_"), try_it())
    except (OSError, MemoryError, RuntimeError) as err:
        print(name.replace(" ", "_"), type(err).__name__)
# What a replay needs goes on.
done = []
thread = threading.Thread(target=lambda: done.append(1))
thread.start(); thread.join()
torch.set_num_threads(3)
rows = torch.randn(500, 500, requires_grad=True)
(rows @ rows).sum().backward()
print("work", done, rows.grad.shape[0])
go.set(); older.join()
print("early", early[0])
open("own", "w").write("x")
os.rename("own", "renamed")
print("kept", os.path.exists("renamed"))
import resource
print("core", resource.getrlimit(resource.RLIMIT_CORE)[0])
"""


def has_landlock() -> bool:
    import ctypes

    return bool(ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1)


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="numbers of Linux on x86-64"
)
def test_a_confined_process_starts_nothing_and_works_on(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "victim").touch()
    answer = subprocess.run(
        [sys.executable, "-c", CONFINED], cwd=work, capture_output=True, text=True, check=True
    )
    said = dict(line.split(" ", 1) for line in answer.stdout.splitlines())
    # The shell is not even begun: its exit code says that it could not be.
    assert {said.pop("system"), said.pop("early")} == {str(127 << 8)}
    assert said.pop("work") == "[1] 500"
    assert said.pop("core") == "0"
    assert said.pop("kept") == "True"
    kept_from = ["elsewhere", "link", "remove", "secrets", "mind"]
    of_landlock = {name: said.pop(name) for name in kept_from}
    if not os.geteuid():
        # Who may watch the whole system may read that, too.
        del of_landlock["secrets"]
    if has_landlock():
        assert set(of_landlock.values()) == {"PermissionError"}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["victim", "work"]
    assert said == {
        "fork": "PermissionError",
        "spawn": "PermissionError",
        "exec": "PermissionError",
        "connect": "PermissionError",
        "signal": "PermissionError",
        "memory": "MemoryError",
        "tensor": "RuntimeError",
        "file": "OSError",
        "pidfd": "PermissionError",
        "thread_of_another": "PermissionError",
        "ring": "PermissionError",
    }
    assert not (work / "PWNED").exists()
    assert (work / "large").stat().st_size <= 1 << 24


def test_a_worker_gets_no_secret() -> None:
    given = {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/opt/lib",
        "CUDA_VISIBLE_DEVICES": "0",
        "ASCEND_HOME_PATH": "/opt/ascend",
        "OMP_NUM_THREADS": "4",
        "LC_ALL": "C",
        "AWS_SECRET_ACCESS_KEY": "x",
        "GITHUB_TOKEN": "x",
        "WANDB_API_KEY": "x",
        "SSH_AUTH_SOCK": "x",
        "TORCH_HUB_PASSWORD": "x",
        "https_proxy": "http://me:word@proxy",
        "TENANT_DB_PWD": "x",
        "GITHUB_PAT": "x",
        "AZURE_STORAGE_CONNECTION_STRING": "x",
        "SENTRY_DSN": "x",
        "DATABASE": "postgres://me:word@host/x",
        "MY_OPS_FOLDER": "/opt/ops",
    }
    strict = clean_environment(given, keeps_others=False)
    assert list(strict) == list(given)[:6]
    # The user's own code may need variables that nobody here knows.
    own = clean_environment(given, keeps_others=True)
    assert list(own) == [*list(given)[:6], "MY_OPS_FOLDER"]


def test_modules_beside_a_dump_are_not_imported(tmp_path: Path) -> None:
    """Somebody stands in the folder of a dump: what lies there is not for Python to find."""
    import torch

    from tensorprobe import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    debugger.start()
    torch.exp(torch.ones(2))
    debugger.stop()
    debugger.close()
    folder = tmp_path / "dump" / "step0"
    for name in ("json", "random", "opt_einsum", "dill", "sitecustomize", "torch_npu"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\n")
    answer = subprocess.run(
        [sys.executable, "-I", "-m", "tensorprobe", "precheck", ".", "-o", str(tmp_path / "out")],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "2 calls: 2 pass" in answer.stdout
    assert not (tmp_path / "PWNED").exists()


def test_a_module_of_the_users_is_found_where_the_command_was_given(tmp_path: Path) -> None:
    (tmp_path / "ops_beside_the_command.py").write_text(
        "import os\nopen('imported', 'w').write(str(sorted(os.environ)))\n"
    )
    (tmp_path / "dump.json").write_text(
        '{"task":"statistics","level":"L1","framework":"pytorch","dump_data_dir":null,"data":'
        '{"Torch.zeros.0.forward":{"input_args":[{"type":"int","value":2}],"input_kwargs":{},'
        '"output":[]}}}'
    )
    answer = subprocess.run(
        [sys.executable, "-m", "tensorprobe", "precheck", "dump.json", "-o", "out", "--import",
         "ops_beside_the_command"],
        cwd=tmp_path,
        env={**os.environ, "MY_SECRET_TOKEN": "x"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, "")
    # Workers run in a folder of their own, where the module wrote its file.
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"dump.json", "ops_beside_the_command.py", "out"}
