"""stdout, stderr and stdin may be closed, full or unread: every command ends as it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import DATA
from tensorprobe.store import open_dump

MLP = DATA / "peer_dumps/msprobe-8.2.1/mlp/L1_tensor"
FULL = "tensorprobe: the output cannot be written: No space left on device\n"
CALLS = [
    "show {ours}",
    "compare {ours} {theirs} -o out --format csv",
    "precheck {ours} -o out",
    "overflow {ours} -o out",
    "--help",
]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    filled = command.format(
        tensorprobe=f"{sys.executable} -m tensorprobe",
        python=sys.executable,
        ours=MLP / "npu",
        theirs=MLP / "bench",
    )
    return subprocess.run(
        ["bash", "-c", filled], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.split()[0])
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("2>&- >/dev/null", 0, ""),
        (">/dev/full", 2, FULL),
        (">/dev/full 2>&1", 2, ""),
        ("2>&1 | true; exit ${{PIPESTATUS[0]}}", 0, ""),
    ],
)
def test_a_command_ends_as_it_should(
    call: str, how: str, code: int, said: str, tmp_path: Path
) -> None:
    answer = shell(f"{{tensorprobe}} {call} {how}", tmp_path)
    assert (answer.returncode, answer.stderr) == (code, said)
    # What goes into files is whole, whoever reads the rest.
    assert "-o out" not in call or list((tmp_path / "out").glob("*.csv"))


def test_a_finding_is_told_though_nobody_reads(tmp_path: Path) -> None:
    """Whoever looks at the exit code alone must not be told that all is well."""
    call = {
        "input_args": [{"type": "torch.Tensor", "dtype": "torch.nonsense", "shape": [2]}],
        "output": [],
    }
    dump = {"task": "statistics", "level": "L1", "data": {"Torch.cos.0.forward": call}}
    (tmp_path / "dump.json").write_text(json.dumps(dump)[:-1])
    command = "{tensorprobe} precheck . -o out"
    assert shell(command, tmp_path).returncode == 2
    for how in (">&-", "| true; exit ${{PIPESTATUS[0]}}", ">/dev/full", "<&- >&- 2>&-"):
        assert shell(f"{command} {how}", tmp_path).returncode == 2


def test_an_error_needs_no_stream(tmp_path: Path) -> None:
    for how in ("2>&-", "2>/dev/full", "<&- >&- 2>&-", "2>&1 | true; exit ${{PIPESTATUS[0]}}"):
        answer = shell(f"{{tensorprobe}} show nowhere {how}", tmp_path)
        assert (answer.returncode, answer.stdout, answer.stderr) == (2, "", "")


SCRIPT = """
import os, sys
import torch

print("the script's own", flush=True)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def fails(number):
    try:
        os.write(number, b"-")
    except OSError as err:
        return err.strerror


seen = (sys.stdin, sys.stdout, sys.stderr, fails(1), fails(2))
with open("seen.txt", "w") as file:
    print(*seen, file=file)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ("train.py", ">&-"),
        ("train.py", "<&- >&- 2>&-"),
        ("-m train", "<&- >&- 2>&-"),
    ],
)
def test_a_training_runs_as_without_us(words: str, how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    bare = shell(f"{{python}} {words} {how}", tmp_path)
    seen = (tmp_path / "seen.txt").read_text()
    answer = shell(f"{{tensorprobe}} run -o dump {words} {how}", tmp_path)
    assert (answer.returncode, answer.stdout) == (bare.returncode, bare.stdout)
    assert answer.returncode == 3
    assert (tmp_path / "seen.txt").read_text() == seen
    told = "tensorprobe: captured 2 steps; look with: tensorprobe show dump\n"
    assert answer.stderr == bare.stderr + ("" if "2>" in how else told)
    dump = open_dump(tmp_path / "dump")
    assert len(dump.parts) == 2 and not dump.gaps


def test_no_file_of_a_dump_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Libraries in C write to the descriptor 2 whatever it is."""
    look = "[os.path.realpath(f'/proc/self/fd/{n}') for n in range(3)]"
    (tmp_path / "train.py").write_text(f"import os\nopen('seen.txt', 'w').write(repr({look}))\n")
    answer = shell("{tensorprobe} run -o dump train.py <&- >&- 2>&-", tmp_path)
    assert answer.returncode == 0
    assert (tmp_path / "seen.txt").read_text() == repr([os.devnull] * 3)


def test_what_is_no_finding_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich/__init__.py").write_text("raise RuntimeError('odd \\x1b[31m\\nTraceback')\n")
    for command in ("show {ours}", "precheck {ours}", "overflow {ours}"):
        broken = f"PYTHONPATH={tmp_path} {{tensorprobe}} {command}"
        answer = shell(broken, tmp_path)
        assert (answer.returncode, answer.stdout) == (70, "")
        assert answer.stderr == (
            "tensorprobe: this is a fault of tensorprobe, please report it: RuntimeError: odd "
            "�[31m Traceback; TENSORPROBE_DEBUG=1 shows the traceback\n"
        )
        for debugged in (f"TENSORPROBE_DEBUG=1 {broken}", f"{broken} --debug"):
            answer = shell(debugged, tmp_path)
            assert answer.returncode == 70
            assert answer.stderr.startswith("Traceback (most recent call last):\n")
            assert "\x1b" not in answer.stderr


def test_an_error_with_a_traceback_keeps_its_exit_code(tmp_path: Path) -> None:
    answer = shell("{tensorprobe} show nowhere --debug", tmp_path)
    assert answer.returncode == 2
    assert "Traceback (most recent call last):\n" in answer.stderr
    assert answer.stderr.endswith("tensorprobe: nowhere does not exist; check the path\n")
