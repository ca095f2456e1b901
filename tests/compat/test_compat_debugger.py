"""`PrecisionDebugger` as scripts import it from msprobe, and the list of functions beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

OURS = REPOSITORY / "compat/src"
LIST = "msprobe/pytorch/hook_module/support_wrap_ops.yaml"


def run_script(program: str, folder: Path, package: Path = OURS) -> list[str]:
    """Run a script in a folder, and return the names in its dump and what it printed."""
    (folder / "train.py").write_text(program)
    answer = subprocess.run(
        [sys.executable, "train.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package), str(REPOSITORY / "src")])},
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stderr.splitlines()


def names_in(folder: Path, step: int = 0) -> list[str]:
    return list(json.loads((folder / f"step{step}/rank/dump.json").read_text())["data"])


TRAIN = """
from msprobe.pytorch import *
from msprobe.pytorch.common import seed_all as same
assert seed_all is same
seed_all(mode=True)
debugger = PrecisionDebugger(dump_path="./dump")
x = torch.ones(2, 2)
debugger.start()
torch.nn.functional.gelu(x)[0].t()
PrecisionDebugger.stop()
PrecisionDebugger.step()
"""

WHOLE = [f"{name}.0.forward" for name in ("Functional.gelu", "Tensor.__getitem__", "Tensor.t")]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, as somebody may have installed and edited it."""
    shutil.copytree(OURS, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__", "*.egg*"))
    return tmp_path / "site"


@pytest.mark.parametrize("line", ["__getitem__", "gelu", "t"])
def test_an_edit_in_the_packages_own_list_counts(line: str, package: Path, tmp_path: Path) -> None:
    text = (package / LIST).read_text()
    assert text.count(f"  - {line}\n") >= 1
    (package / LIST).write_text(text.replace(f"  - {line}\n", f"  # - {line}\n"))
    # A name may be of a function and of a method.
    assert re.fullmatch(
        rf"{package / LIST} was edited, and counts: of the functions that tensorprobe knows [12] "
        "are left out",
        *run_script(TRAIN, tmp_path, package),
    )
    assert names_in(tmp_path / "dump") == [n for n in WHOLE if n.split(".")[1] != line]


def test_a_list_of_another_version_that_nobody_edited_has_no_effect(
    package: Path, tmp_path: Path
) -> None:
    shipped = (package / LIST).read_bytes().replace(b"  - gelu\n", b"")
    (package / LIST).write_bytes(shipped)
    # What pip leaves of a package that it has installed there.
    about = package / "tensorprobe_compat-0.0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorprobe-compat\nVersion: 0.0.1\n"
    )
    digest = base64.urlsafe_b64encode(hashlib.sha256(shipped).digest()).decode().rstrip("=")
    (about / "RECORD").write_text(f"{LIST},sha256={digest},{len(shipped)}\n")
    assert run_script(TRAIN, tmp_path, package) == []
    assert names_in(tmp_path / "dump") == WHOLE
    (package / LIST).write_bytes(shipped.replace(b"  - t\n", b""))
    (told,) = run_script(TRAIN, tmp_path, package)
    assert "was edited, and counts" in told
    assert names_in(tmp_path / "dump") == ["Tensor.__getitem__.0.forward"]


def test_an_operator_that_is_added_under_torch_npu_is_captured(
    package: Path, tmp_path: Path
) -> None:
    (tmp_path / "torch_npu.py").write_text(
        "import torch\ndef npu_fused_of_ours(x):\n    return torch.softmax(x, -1)\n"
    )
    text = (package / LIST).read_text()
    (package / LIST).write_text(text.replace("torch_npu:\n", "torch_npu:\n  - npu_fused_of_ours\n"))
    program = TRAIN.replace("torch.nn.functional.gelu(x)[0].t()", "torch_npu.npu_fused_of_ours(x)")
    (told,) = run_script(f"import torch_npu\n{program}", tmp_path, package)
    assert told.endswith("of the functions that tensorprobe knows 0 are left out")
    assert names_in(tmp_path / "dump") == ["NPU.npu_fused_of_ours.0.forward"]


def test_a_list_that_is_named_wins_over_the_packages_own(package: Path, tmp_path: Path) -> None:
    (package / LIST).write_text("nonsense")
    (tmp_path / "mine.yaml").write_text("functional: [gelu]\n")
    (tmp_path / "config.json").write_text('{"api_list": "mine.yaml"}')
    program = TRAIN.replace('dump_path="./dump"', '"config.json", dump_path="./dump"')
    assert run_script(program, tmp_path, package) == []
    assert names_in(tmp_path / "dump") == ["Functional.gelu.0.forward"]


def test_without_the_file_everything_is_captured(package: Path, tmp_path: Path) -> None:
    (package / LIST).unlink()
    assert run_script(TRAIN, tmp_path, package) == []
    assert names_in(tmp_path / "dump") == WHOLE


def test_a_second_debugger_of_a_process_is_the_first(tmp_path: Path) -> None:
    told = run_script(
        "import os, torch\n"
        "from msprobe.pytorch import PrecisionDebugger\n"
        "from msprobe.pytorch.debugger.precision_debugger import PrecisionDebugger as Same\n"
        "assert Same is PrecisionDebugger\n"
        "x = torch.ones(2)\n"
        "workers = [PrecisionDebugger(dump_path=name) for name in ('actor', 'critic')]\n"
        "assert workers[0] is workers[1] is PrecisionDebugger()\n"
        "for worker, name in zip(workers, ('actor', 'critic')):\n"
        "    worker.service.config.dump_path = os.path.join('data', name)\n"
        "    worker.start()\n"
        "    torch.relu(x)\n"
        "    worker.stop()\n"
        "workers[1].step()\n"
        "workers[0].close()\n"
        "assert PrecisionDebugger(dump_path='later') is not workers[0]\n"
        "assert PrecisionDebugger().dump_path.name == 'later'\n",
        tmp_path,
    )
    assert told == [
        "a second PrecisionDebugger of a process is the first one, as in msprobe, and its "
        "arguments are ignored; change debugger.config.dump_path, or close() the first"
    ]
    assert names_in(tmp_path / "data/actor") == ["Torch.relu.0.forward"]
    assert names_in(tmp_path / "data/critic") == ["Torch.relu.1.forward"]


def test_what_cannot_be_made_is_not_the_first(tmp_path: Path) -> None:
    run_script(
        "from msprobe.pytorch import PrecisionDebugger\n"
        "from tensorprobe import TensorprobeError\n"
        "try:\n"
        "    PrecisionDebugger(level='L7')\n"
        "except TensorprobeError as err:\n"
        "    assert 'L7' in str(err)\n"
        "assert PrecisionDebugger(level='L0').config.level == 'L0'\n",
        tmp_path,
    )


def test_a_dataloader_ends_the_run_in_the_words_of_the_manual(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"enable_dataloader": true, "step": [0, 1]}')
    run_script(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "from msprobe.pytorch import PrecisionDebugger\n"
        "debugger = PrecisionDebugger('config.json', dump_path='dump')\n"
        "try:\n"
        "    for batch in DataLoader(torch.ones(8, 2)):\n"
        "        torch.relu(batch)\n"
        "except Exception as err:\n"
        "    assert str(err) == 'msprobe: exit after iteration 1', err\n"
        "else:\n"
        "    raise SystemExit('it did not end')\n",
        tmp_path,
    )
    assert "Torch.relu.0.forward" in names_in(tmp_path / "dump", 1)
