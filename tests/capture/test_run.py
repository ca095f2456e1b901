"""`tensorprobe run`: a script that was not edited is captured, and does not notice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprobe import open_dump, script_start
from tensorprobe.capture.launch import rewrite_command
from tensorprobe.capture.script import run_script
from tensorprobe.cli import main
from tensorprobe.config import Config
from tensorprobe.errors import ConfigError

pytestmark = pytest.mark.same_without_c


TRAIN = """\
import multiprocessing, os, sys
import torch

def child(queue):
    queue.put(__name__)

def train():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    train()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print("child", queue.get())
    process.join()
    print(sys.argv, __file__, os.getcwd(), sys.path[0], sys.modules["__main__"].train is train)
    print("TENSORPROBE_RUN" in os.environ)
    sys.exit(int(sys.argv[1]))
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorprobe", "run", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | environment,
    )


def plain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=folder
    )


def steps(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


def test_a_script_runs_as_without_us_and_is_captured(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "train.py").write_text(TRAIN)
    answer = run(tmp_path, "--level", "mix", "-o", "dump", "scripts/train.py", "3", "--step", "9")
    assert answer.returncode == 3, answer.stderr
    assert answer.stdout.splitlines() == [
        "child __mp_main__",
        f"['scripts/train.py', '3', '--step', '9'] {scripts / 'train.py'} {tmp_path} {scripts} "
        "True",
        "False",
    ]
    assert answer.stderr == "tensorprobe: captured 3 steps; look with: tensorprobe show dump\n"
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    names = [call.name for call in open_dump(tmp_path / "dump/step1")]
    assert {"Module.0.Linear.forward.0", "Functional.linear.0.backward"} <= set(names)
    stack = open_dump(tmp_path / "dump").part(step=1).stack("Functional.linear.0.forward")
    assert [frame.function for frame in stack[-2:]] == ["train", "<module>"]
    # The optimizer's own work is left out.
    assert not any("sqrt" in name or "lerp" in name or "addc" in name for name in names)


@pytest.mark.parametrize("launcher", [(), ("python", "-u"), ("torchrun", "--standalone")])
def test_nothing_is_imported_from_the_working_directory(
    tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    # One that torch needs.
    (tmp_path / "queue.py").write_text("raise ImportError('of the project')\n")
    (scripts / "train.py").write_text("import sys, torch\ntorch.ones(2) + 1\nprint(sys.path[0])\n")
    command = ["run", "-o", "dump", *launcher, "scripts/train.py"]
    answer = subprocess.run(
        # As the command `tensorprobe`, which has the working directory not in its path either.
        [sys.executable, "-c", _COMMAND, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PATH": _path()},
    )
    assert answer.stdout == f"{scripts}\n", answer.stderr
    assert open_dump(tmp_path / "dump").parts[0].names


def test_a_script_that_follows_a_dataloader_ends_with_where_the_dump_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "for batch in torch.utils.data.DataLoader(torch.ones(6, 4)):\n"
        "    torch.nn.functional.relu(batch)\n"
    )
    (tmp_path / "config.json").write_text('{"enable_dataloader": true, "step": [0, 1]}')
    answer = run(tmp_path, "--config", "config.json", "-o", "dump", "train.py")
    assert answer.returncode == 1
    *_, error, last = answer.stderr.splitlines()
    assert error == "Exception: tensorprobe: exit after iteration 1"
    assert last == "tensorprobe: captured 2 steps; look with: tensorprobe show dump"


def test_a_forked_process_of_a_script_leaves_the_last_line_to_its_parent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch\n"
        "torch.relu(torch.ones(2))\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "torch.tanh(torch.ones(2))\n"
    )
    answer = run(tmp_path, "-o", "dump", "train.py")
    assert answer.stderr == "tensorprobe: captured 1 step; look with: tensorprobe show dump\n"


def test_an_error_looks_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def f():\n    raise ValueError('mine')\n\nf()\n")
    answer, expected = run(tmp_path, "fails.py"), plain(tmp_path, "fails.py")
    assert answer.returncode == expected.returncode == 1
    assert answer.stderr == expected.stderr + "tensorprobe: nothing was captured\n"
    assert not list((tmp_path / "dump_path").iterdir())


def test_a_signal_ends_the_script_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(
        # What runs in the background ignores the signal, and hands that on to its children.
        "import os, signal, torch\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "torch.relu(torch.ones(2))\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    answer = run(tmp_path, "stops.py")
    expected = plain(tmp_path, "stops.py")
    assert answer.returncode == expected.returncode == -signal.SIGINT
    said = "tensorprobe: captured 1 step; look with: tensorprobe show dump_path\n"
    assert answer.stderr.replace("./dump_path", "dump_path") == said + expected.stderr
    names = [call.name for call in open_dump(tmp_path / "dump_path")]
    assert "Torch.relu.0.forward" in names


def test_an_interrupt_inside_a_captured_call_shows_no_frame_of_ours(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(
        "import os, signal, torch\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def stop(gradient):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "x.register_hook(stop)\n"
        "x.sum().backward()\n"
    )
    answer = run(tmp_path, "stops.py")
    assert answer.returncode == -signal.SIGINT
    assert "x.sum().backward()" in answer.stderr and "in stop\n" in answer.stderr
    assert str(Path("tensorprobe", "capture")) not in answer.stderr


def test_an_interrupt_while_records_are_written_shows_no_frame_of_ours(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(
        "import signal, torch\n"
        "from tensorprobe.store.journal import Journal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "append_entry, entries = Journal.append_entry, []\n"
        "def stop(journal, *entry, **how):\n"
        "    entries.append(entry)\n"
        "    if len(entries) == 20:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    return append_entry(journal, *entry, **how)\n"
        "Journal.append_entry = stop\n"
        "while True:\n"
        "    torch.ones(1)\n"
    )
    answer = run(tmp_path, "-o", "dump", "stops.py")
    assert answer.returncode == -signal.SIGINT
    lines = answer.stderr.splitlines()
    at = lines.index("Traceback (most recent call last):")
    assert "stops.py" in lines[at + 1] and lines[at + 2] == "    torch.ones(1)"
    assert lines[-1] == "KeyboardInterrupt" and len(lines) - at <= 5
    assert len(open_dump(tmp_path / "dump").parts[0].names) > 1


@pytest.mark.parametrize("python", [["python"], []])
def test_a_module_runs_with_its_package(tmp_path: Path, python: list[str]) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys, torch\n"
        "from . import __name__ as parent\n"
        "torch.relu(torch.ones(2))\n"
        "print(__name__, parent, sys.argv)\n"
    )
    answer = run(tmp_path, "--level", "L1", *python, "-m", "package.train", "--level", PATH=_path())
    assert answer.stdout == f"__main__ package {[str(package / 'train.py'), '--level']}\n"
    assert "Torch.relu.0.forward" in [call.name for call in open_dump(tmp_path / "dump_path")]


def test_the_processes_of_torchrun_are_captured_by_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, torch, torch.distributed as dist\n"
        "model = torch.nn.Linear(2, 2)\n"
        "model(torch.ones(1, 2))\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(model)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "print(sys.argv)\n"
        "dist.destroy_process_group()\n"
    )
    options = ["--step", "0,2", "--list", "linear", "-o", "dump"]
    launcher = ["torchrun", "--nproc-per-node", "2", "--master-port", str(_free_port())]
    answer = run(tmp_path, *options, *launcher, "train.py", "--lr", "1", PATH=_path())
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("['train.py', '--lr', '1']") == 2
    assert "tensorprobe: captured 2 steps; look with: tensorprobe show dump\n" in answer.stderr
    dump = open_dump(tmp_path / "dump")
    assert [(part.info.step, part.info.rank) for part in dump.parts] == [
        (0, 0),
        (0, 1),
        (2, 0),
        (2, 1),
    ]
    for part in dump.parts:
        assert {call.name for call in part} >= {"Functional.linear.0.forward"}
        assert all("linear" in call.name for call in part)


def test_the_processes_of_the_older_launcher_are_captured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, torch\ntorch.relu(torch.ones(2))\nprint(sys.argv)\n"
    )
    launcher = ["-m", "torch.distributed.launch", "--nproc-per-node", "2"]
    launcher += ["--master-port", str(_free_port())]
    answer = run(tmp_path, "-o", "dump", *launcher, "train.py", "--lr", "1")
    assert answer.returncode == 0, answer.stderr
    for rank in range(2):
        assert f"['train.py', '--local-rank={rank}', '--lr', '1']" in answer.stdout
    parts = open_dump(tmp_path / "dump").parts
    assert [(part.info.rank, "Torch.relu.0.forward" in part.names) for part in parts] == [
        (0, True),
        (1, True),
    ]


# --- steps ------------------------------------------------------------------------------------


def test_the_last_line_tells_of_a_debugger_of_the_script_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from tensorprobe import PrecisionDebugger\n"
        "torch.relu(torch.ones(2))\n"
        "with PrecisionDebugger(dump_path='own'):\n"
        "    torch.tanh(torch.ones(2))\n"
    )
    answer = run(tmp_path, "-o", "dump", "train.py")
    assert answer.stderr == (
        "tensorprobe: the script made a debugger of its own, which took over; before that, "
        "captured 1 step; look with: tensorprobe show dump\n"
    )
    assert "Torch.tanh.0.forward" in [call.name for call in open_dump(tmp_path / "own")]


# --- the command line -------------------------------------------------------------------------


START = str(Path(script_start.__file__))
MODULE = "tensorprobe.script_start"


@pytest.mark.parametrize(
    ("command", "rewritten"),
    [
        (["{file}", "-x"], [sys.executable, START, "{file}", "-x"]),
        (["--", "-m", "pkg", "-x"], [sys.executable, "-m", MODULE, "-m", "pkg", "-x"]),
        (["python3.11", "-u", "a.py"], ["python3.11", "-u", START, "a.py"]),
        (["python", "-X", "dev", "-m", "p"], ["python", "-X", "dev", "-m", MODULE, "-m", "p"]),
        (
            ["{bin}/torchrun", "--nnodes", "2", "a.py", "--nnodes", "3"],
            ["{bin}/torchrun", "--nnodes", "2", START, "a.py", "--nnodes", "3"],
        ),
        (
            ["{bin}/torchrun", "--standalone", "-m", "pkg.train", "-m"],
            ["{bin}/torchrun", "--standalone", "-m", MODULE, "-m", "pkg.train", "-m"],
        ),
        (
            ["/nowhere/torchrun", "a.py"],
            [sys.executable, "-m", "torch.distributed.run", START, "a.py"],
        ),
        (
            ["python", "-u", "-m", "torch.distributed.run", "--nproc-per-node=2", "a.py"],
            ["python", "-u", "-m", "torch.distributed.run", "--nproc-per-node=2", START, "a.py"],
        ),
        (
            ["-m", "torch.distributed.run", "--nnodes", "2", "a.py"],
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", START, "a.py"],
        ),
        (
            ["python", "-m", "torch.distributed.launch", "--use-env", "-m", "pkg"],
            ["python", "-m", "torch.distributed.launch", "--use-env", "-m", MODULE, "-m", "pkg"],
        ),
    ],
)
def test_a_command_is_led_through_us(command: list[str], rewritten: list[str]) -> None:
    def filled(words: list[str]) -> list[str]:
        return [word.format(file=__file__, bin=Path(sys.executable).parent) for word in words]

    assert rewrite_command(filled(command)) == filled(rewritten)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "there is no script to run; try: tensorprobe run train.py"),
        (["--"], "there is no script to run; try: tensorprobe run train.py"),
        (["python", "-u"], "there is no script to run; try: tensorprobe run python train.py"),
        (["-m"], "there is no module behind -m; try: tensorprobe run -m package.train"),
        (["python", "-c", "1"], "python -c cannot be captured; give a script or -m"),
        (
            ["accelerate", "launch", "train.py"],
            "accelerate is no Python script, and no launcher but torchrun is known here; put "
            "tensorprobe behind another one, as in: mpirun -n 2 tensorprobe run train.py",
        ),
        (
            ["torchrun", "--no-python", "a.py"],
            "torchrun --no-python cannot be captured; leave the option out",
        ),
        (
            ["-m", "torch.distributed.launch", "-m", "pkg"],
            "torch.distributed.launch -m hands --local-rank on and cannot be captured so; use "
            "torchrun -m, or add --use-env",
        ),
        (
            ["torchrun", "--run-path", "a.py"],
            "torchrun --run-path cannot be captured; leave the option out",
        ),
    ],
)
def test_a_command_that_cannot_be_captured_is_refused(command: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite_command(command)
    assert str(caught.value) == message


def test_a_wrong_option_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('started')\n")
    answer = run(tmp_path, "--level", "L9", "train.py")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("tensorprobe: argument level is 'L9', wanted 'L0', 'L1'")
    answer = run(tmp_path, "python-that-is-not-there", "train.py")
    assert answer.returncode == 2


def test_a_folder_that_cannot_be_made_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["run", "-o", str(tmp_path / "taken"), str(tmp_path / "train.py")]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "taken cannot be made: there is a file of that name; choose another with -o" in told


def test_the_folder_that_nobody_chose_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "dump_path").write_text("")
    (tmp_path / "train.py").write_text("print('started')\n")
    answer = run(tmp_path, "train.py")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        "tensorprobe: the folder dump_path cannot be made: there is a file of that name; choose "
        "another with -o\n"
    )


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    answer = run(tmp_path, "/nowhere/python3", "train.py")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        "tensorprobe: /nowhere/python3 cannot be started: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "there is no script nothing.py; check the path"),
        ([], "there is no script given; check the path"),
        (["-m"], "-m wants the name of a module"),
    ],
)
def test_a_script_that_is_not_there_is_told(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_script(words, Config())
    assert str(caught.value) == message


def test_help_has_examples_and_starting_needs_no_torch(tmp_path: Path) -> None:
    answer = run(tmp_path, "--help")
    assert answer.returncode == 0
    assert "tensorprobe run --rank 0,4-6 torchrun --nproc-per-node 8 train.py" in answer.stdout
    program = (
        "import sys\n"
        "from tensorprobe.capture.launch import rewrite_command\n"
        "rewrite_command(['python', 'train.py'])\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    assert plain(tmp_path, "-c", program).stdout == "[]\n"


# `python -c` looks in the working directory too.
_COMMAND = "import sys; del sys.path[0]; from tensorprobe.cli import run; sys.exit(run())"


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


SWITCHED = """\
import json, sys, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    if sys.argv[1:]:
        is_on = step == 0
        with open("config.json", "w") as file:
            json.dump({"dump_enable": is_on, "dump_path": "dump"}, file)
    optimizer.step()
"""


def test_a_file_with_dump_enable_switches_a_run_on_and_off(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SWITCHED)
    (tmp_path / "config.json").write_text('{"dump_enable": false, "dump_path": "dump"}')
    answer = run(tmp_path, "--config", "config.json", "train.py")
    assert answer.returncode == 0 and steps(tmp_path / "dump") == []
    told, last = answer.stderr.splitlines()
    assert told.endswith("config.json: dump_enable is false: nothing is captured until it is true")
    assert last == "tensorprobe: nothing was captured; dump_enable is false"
    answer = run(tmp_path, "--config", "config.json", "train.py", "switch")
    assert answer.returncode == 0 and steps(tmp_path / "dump") == ["step1"]
