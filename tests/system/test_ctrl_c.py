"""Ctrl-C ends a command with one line and no traceback, and leaves no half-written file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DATA

MLP = DATA / "peer_dumps/msprobe-8.2.1/mlp/L1_tensor"
# Ctrl-C is pressed the first time that an event begins with these words; see sys.addaudithook.
PRESS = """
import runpy, signal, sys

wanted, module, *words = sys.argv[1:]
pressed = []

def press(event, arguments):
    if not pressed and f"{event} {arguments[0] if arguments else ''}".startswith(wanted):
        pressed.append(event)
        signal.raise_signal(signal.SIGINT)

sys.addaudithook(press)
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
COMPARE = f"tensorprobe compare {MLP / 'npu'} {MLP / 'bench'} -o results --first-diff"
BLAME = f"tensorprobe blame {MLP / 'npu'} {MLP / 'bench'}"
MERGED = DATA / "peer_dumps/compare-8.2.1/dist"
MERGE = (
    f"tensorprobe merge {MERGED}/mix_statistics -o merged "
    f"--config {MERGED}/merge_statistics/config.yaml"
)
PRECHECK = f"tensorprobe precheck {MLP / 'npu'} -o results"


def press(wanted: str, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRESS, wanted, *command.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        # What runs in the background ignores the signal, and hands that on to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        ("import tensorprobe.cli", "tensorprobe doctor"),
        ("import argparse", "tensorprobe doctor"),
        ("import tensorprobe.errors", f"tensorprobe show {MLP / 'npu'}"),
        ("import rich.text", f"tensorprobe show {MLP / 'npu'}"),
        ("subprocess.Popen", "tensorprobe doctor"),
        ("import numpy", COMPARE),
        ("import zipfile", COMPARE),
        ("os.rename results/.tmp-", COMPARE),
        ("import tensorprobe.replay.pool", BLAME),
        ("subprocess.Popen", BLAME),
        ("import rich.progress", PRECHECK),
        ("subprocess.Popen", PRECHECK),
        ("open results/accuracy_checking_result", PRECHECK),
        ("import tensorprobe.ranks.workbook", MERGE),
        (f"open {MERGED}/mix_statistics/compare_result_rank2", MERGE),
        ("os.rename merged/.tmp-", MERGE),
        ("import torch", "tensorprobe.demo demo"),
        ("import tensorprobe_compat", "msprobe -f pytorch parse"),
    ],
)
def test_ctrl_c_is_one_line(wanted: str, command: str, tmp_path: Path) -> None:
    answer = press(wanted, command, tmp_path)
    # Python itself may prefer to die of the signal, after all is done.
    assert answer.returncode in (130, -signal.SIGINT), answer.stderr
    assert answer.stderr.startswith("tensorprobe: interrupted")
    assert answer.stderr.count("\n") == 1
    assert not list(tmp_path.rglob(".tmp-*"))
    for file in tmp_path.rglob("*.csv"):
        assert file.read_bytes().endswith(b"\n") or not file.stat().st_size


LOST = """
import signal, sys, weakref

def press(_):
    signal.raise_signal(signal.SIGINT)

class Gone:
    pass

def work(manner):
    gone = Gone()
    watched = weakref.ref(gone, press)
    # Python cannot raise what a callback raises here: it prints that, and goes on.
    del gone
    print("went on")
    return 0

from tensorprobe.ending import ended
sys.exit(ended(work))
"""
TWICE = """
import signal, sys, time
from tensorprobe.ending import ended

def work(manner):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        # Something that is tidied up and takes too long.
        signal.raise_signal(signal.SIGINT)
        print("went on", file=sys.stderr)
    return 0

sys.exit(ended(work))
"""
ANOTHER = """
import signal, sys
from tensorprobe.ending import ended

def work(manner):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("something is wrong with your installation") from None

sys.exit(ended(work))
"""
AT_EXIT = """
import atexit, signal, sys
from tensorprobe.system.ctrl_c import end_at_once
from tensorprobe.ending import ended

end_at_once()
atexit.register(signal.raise_signal, signal.SIGINT)
sys.exit(ended(lambda manner: 0))
"""


@pytest.mark.parametrize(
    "program",
    [LOST, TWICE, ANOTHER, AT_EXIT],
    ids=["lost", "twice", "made another error", "at exit"],
)
def test_ctrl_c_ends_a_command_where_no_exception_would(program: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (answer.returncode, answer.stdout) == (130, "")
    assert answer.stderr == "tensorprobe: interrupted\n"


def test_who_ignores_ctrl_c_keeps_ignoring_it() -> None:
    program = AT_EXIT.replace("lambda manner: 0", "lambda manner: print('went on') or 0")
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "went on\n", "")


SCRIPT = "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"
PRESS_IN_START = """
import os, signal, sys
def press(event, arguments):
    if event == "import" and arguments[0] == os.environ["PRESS_AT"]:
        os.environ["PRESS_AT"] = ""
        signal.raise_signal(signal.SIGINT)
if "TENSORPROBE_RUN" in os.environ:
    sys.addaudithook(press)
"""


@pytest.mark.parametrize("words", ["train.py", "-m train"])
@pytest.mark.parametrize("module", ["torch", "tensorprobe.capture.script", "torch.nn.modules"])
def test_a_run_that_has_not_begun_its_script_shows_no_traceback(
    module: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text(PRESS_IN_START)
    paths = [str(tmp_path), *(path for path in sys.path if path)]
    answer = subprocess.run(
        [sys.executable, "-m", "tensorprobe", "run", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PRESS_AT": module},
        timeout=60,
    )
    assert (answer.returncode, answer.stdout) == (130, "")
    assert answer.stderr == "tensorprobe: interrupted\n"
