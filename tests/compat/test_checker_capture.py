"""Capturing with api_accuracy_checker, as seed 001 has it, and the files that come out."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from older_runs import run_script, same_input, same_net

from conftest import DATA, REPOSITORY
from tensorprobe import PrecisionDebugger, TensorprobeError, load_config, open_dump
from tensorprobe.capture.checker import CheckerCapture
from tensorprobe.capture.checker_settings import CheckerConfig
from tensorprobe.records import TensorValue
from tensorprobe.store import RankDump
from tensorprobe.store.checker_writer import write_checker_files

REAL = DATA / "peer_dumps/api_accuracy_checker/2023-11/statistics"

LOOP = """
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2))
for number, (batch,) in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    print("iteration", number, flush=True)
    net(batch).sum().backward()
"""


def files_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the three files by their kind."""
    found = {}
    for file in folder.glob("*_info_*.json"):
        kind, _, rest = file.name.partition("_info_")
        assert rest.removesuffix(".json").isdigit()
        found[kind] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("is_real", [False, True])
def test_a_rank_without_a_loader_has_its_files_though_it_is_terminated(
    tmp_path: Path, is_real: bool
) -> None:
    program = f"""
import os, signal, torch
import api_accuracy_checker.dump as DP
DP.msCheckerConfig.update_config(real_data={is_real})
net = torch.nn.Linear(2, 2)
for number in range(3):
    DP.dump.set_dump_switch("ON")
    net(torch.full((1, 2), float(number))).sum().backward()
    if number == 2:
        os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = run_script(program, tmp_path)
    # Its end is the one that it would have had.
    assert ended.returncode == -signal.SIGTERM and ended.stderr == ""
    files = files_in(tmp_path)
    calls = [f"Functional*linear*{number}" for number in (0, 1)]
    for kind in ("forward", "backward", "stack"):
        assert [key for key in files[kind] if "linear" in key] == calls
    (file,) = tmp_path.glob("forward_info_*.json")
    part = open_dump(file).parts[0]
    assert part.info.task == ("tensor" if is_real else "statistics")
    assert not part.gaps
    (folder,) = tmp_path.glob("unfinished_*")
    assert "Functional.linear.2.forward" in open_dump(folder).parts[0]


def test_files_of_the_time_being_are_replaced_at_the_end(tmp_path: Path) -> None:
    program = """
import torch
import api_accuracy_checker.dump as DP
for number in range(9):
    DP.dump.set_dump_switch("ON")
    torch.relu(torch.ones(2))
DP.dump.set_dump_switch("OFF")
"""
    ended = run_script(program, tmp_path)
    assert ended.stderr == "" and ended.stdout.count("is in") == 1
    relu = [key for key in files_in(tmp_path)["forward"] if "relu" in key]
    assert relu == [f"Torch*relu*{number}" for number in range(9)]
    assert len(list(tmp_path.iterdir())) == 4


def test_an_edit_in_the_packages_own_list_counts_and_changes_no_class_of_ours(
    tmp_path: Path,
) -> None:
    site = tmp_path / "site"
    shutil.copytree(REPOSITORY / "compat/src", site, ignore=shutil.ignore_patterns("*.egg*"))
    file = site / "api_accuracy_checker/hook_module/support_wrap_ops.yaml"
    file.write_text(file.read_text().replace("  - relu\n", ""))
    program = f"""
import sys
sys.path.insert(0, {str(site)!r})
import torch
import api_accuracy_checker.dump as DP
from tensorprobe.capture.checker import CheckerDebugger
assert CheckerDebugger.list_folder is None
DP.dump.set_dump_switch("ON")
torch.relu(torch.ones(2)).neg()
"""
    assert "was edited, and counts" in run_script(program, tmp_path).stderr
    calls = files_in(tmp_path)["forward"]
    assert "Tensor*neg*0" in calls and "Torch*relu*0" not in calls


def test_an_iteration_that_never_comes_is_told(tmp_path: Path) -> None:
    setting = "from api_accuracy_checker.dump import msCheckerConfig\n"
    setting += "msCheckerConfig.update_config(target_iter=5)\n"
    ended = run_script("import torch\n" + setting + LOOP, tmp_path)
    assert ended.returncode == 0 and not files_in(tmp_path)
    assert ended.stderr == (
        "step 5 was wanted and never came: the last one was step 2; nothing was captured\n"
    )


def test_a_script_without_a_dataloader_is_told_why_there_are_no_files(tmp_path: Path) -> None:
    program = "import torch\nimport api_accuracy_checker.dump as DP\n"
    ended = run_script(program + "torch.relu(torch.ones(2))", tmp_path)
    assert ended.stderr.startswith("nothing was captured in this process: enable_dataloader")
    assert len(ended.stderr.splitlines()) == 1
    by_hand = "DP.dump.set_dump_switch('ON')\ntorch.relu(torch.ones(2))"
    assert run_script(program + by_hand, tmp_path).stderr == ""


def test_an_import_alone_captures_the_second_iteration_and_ends_the_run(tmp_path: Path) -> None:
    ended = run_script("import torch\nimport api_accuracy_checker.dump\n" + LOOP, tmp_path)
    assert ended.returncode == 1
    said = ended.stdout.splitlines()
    assert [line for line in said if line.startswith("iteration")] == ["iteration 0", "iteration 1"]
    assert ended.stderr.endswith("\nException: Model pretest: exit after iteration 1.\n")
    files = files_in(tmp_path)
    assert set(files) == {"forward", "backward", "stack"}
    assert list(files["forward"]) == ["Functional*linear*0", "Functional*relu*0", "Tensor*sum*0"]
    assert list(files["backward"]) == ["Tensor*sum*0", "Functional*relu*0", "Functional*linear*0"]
    # The keys of one lead into the other.
    assert list(files["stack"]) == list(files["forward"])
    assert any("train.py, line" in frame for frame in files["stack"]["Tensor*sum*0"])
    # Of the second batch.
    (x, *_) = files["forward"]["Functional*linear*0"]["args"]
    assert (x["Max"], x["Min"], x["shape"]) == (7.0, 4.0, [2, 2])
    assert sorted(child.name for child in tmp_path.iterdir() if child.is_dir()) == []


def test_settings_of_the_script_count(tmp_path: Path) -> None:
    program = """import torch
from api_accuracy_checker.dump import msCheckerConfig
msCheckerConfig.update_config(dump_path="my/dump/path", real_data=True, enable_dataloader=True, target_iter=1)
"""  # noqa: E501
    ended = run_script(program + LOOP, tmp_path)
    assert "Exception: Model pretest: exit after iteration 1." in ended.stderr
    folder = tmp_path / "my/dump/path"
    files = files_in(folder)
    (weight,) = [
        leaf
        for leaf in files["forward"]["Functional*linear*0"]["args"]
        if leaf["datapath"].endswith("Functional*linear*0.1.pt")
    ]
    assert set(weight) == {"type", "datapath", "requires_grad"} and weight["requires_grad"] is True
    assert torch.load(weight["datapath"], weights_only=True).shape == (2, 2)
    assert sorted(child.name for child in folder.iterdir() if child.is_dir()) == [
        "backward_real_data", "forward_real_data"
    ]  # fmt: skip
    (part,) = open_dump(folder).parts
    assert part.info.task == "tensor" and not part.gaps


def test_another_iteration(tmp_path: Path) -> None:
    program = """import torch
import api_accuracy_checker.dump
api_accuracy_checker.dump.msCheckerConfig.update_config(target_iter=0)
"""
    ended = run_script(program + LOOP, tmp_path)
    assert ended.stderr.endswith("Exception: Model pretest: exit after iteration 0.\n")
    assert files_in(tmp_path)["forward"]["Functional*linear*0"]["args"][0]["Max"] == 3.0


def test_without_a_dataloader_the_switch_begins(tmp_path: Path) -> None:
    program = """import torch
import api_accuracy_checker.dump as DP

def forward_step(x):
    DP.dump.set_dump_switch("ON")
    return torch.relu(x).sum()

for number in range(2):
    forward_step(torch.ones(2, requires_grad=True)).backward()
"""
    ended = run_script(program, tmp_path)
    assert ended.returncode == 0 and ended.stderr == ""
    files = files_in(tmp_path)
    assert {"Torch*relu*0", "Torch*relu*1", "Tensor*sum*1"} <= set(files["forward"])
    assert {"Torch*relu*0", "Torch*relu*1"} <= set(files["backward"])
    turned_off = "DP.dump.set_dump_switch('OFF'); torch.neg(torch.ones(1))"
    (tmp_path / "off").mkdir()
    run_script(program.replace(".backward()", f".backward(); {turned_off}"), tmp_path / "off")
    assert not any("neg" in key for key in files_in(tmp_path / "off")["forward"])


def test_where_a_dataloader_decides_the_switch_does_nothing(tmp_path: Path) -> None:
    program = "import torch\nimport api_accuracy_checker.dump as DP\n" + LOOP.replace(
        "    net(", "    DP.dump.set_dump_switch('ON')\n    net("
    )
    ended = run_script(program, tmp_path)
    assert "exit after iteration 1." in ended.stderr
    assert files_in(tmp_path)["forward"]["Functional*linear*0"]["args"][0]["Max"] == 7.0


def test_a_killed_run_leaves_a_dump_of_ours(tmp_path: Path) -> None:
    beginning = """import os, signal, torch
import api_accuracy_checker.dump as DP
DP.msCheckerConfig.update_config(enable_dataloader=False)
DP.dump.set_dump_switch("ON")
"""
    killed = "    if number == 2: os.kill(os.getpid(), signal.SIGKILL)\n    print"
    ended = run_script(beginning + LOOP.replace("    print", killed), tmp_path)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("unfinished_*")
    assert f"its calls are in {left}, which tensorprobe precheck takes" in ended.stdout
    assert "Functional.linear.1.forward" in open_dump(left).parts[0]
    assert not files_in(tmp_path)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"target_itr": 1}, "update_config: target_itr is no setting; there are dump_path, real_"),
        ({"target_iter": -1}, "update_config: target_iter is -1, wanted one number from 0 on"),
        ({"target_iter": [1]}, r"update_config: target_iter is [1], wanted one number from 0 on"),
        ({"real_data": 1}, "update_config: real_data is 1, wanted True or False"),
        ({"dump_path": None}, "update_config: dump_path is None, wanted a path"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_one_line(
    settings: dict[str, Any], complaint: str
) -> None:
    config = CheckerConfig()
    with pytest.raises(TensorprobeError) as caught:
        config.update_config(**settings)
    assert str(caught.value).startswith(complaint) and "\n" not in str(caught.value)
    # Older settings without a meaning here are taken.
    config.update_config(precision=14, jit_compile=True, dump_path=Path("x"))
    assert config.dump_path == "x" and config.target_iter == 1


def test_settings_are_read_from_a_file(tmp_path: Path) -> None:
    from api_accuracy_checker.common import config as shipped

    assert shipped.msCheckerConfig.settings == CheckerConfig().settings
    file = tmp_path / "config.json"
    file.write_text('{"target_iter": 3, "error_data_path": "./x", "precision": 14}')
    assert CheckerConfig(file).target_iter == 3 and CheckerConfig(file).error_data_path == "./x"
    file.write_text('{"target_iter": "many"}')
    with pytest.raises(TensorprobeError, match=r"config\.json: target_iter is 'many', wanted one"):
        CheckerConfig(file)
    file.write_text("[1]")
    with pytest.raises(TensorprobeError, match=r"config\.json: wanted settings, such as"):
        CheckerConfig(file)


def test_settings_that_come_too_late_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CheckerConfig()
    config.update_config(dump_path=str(tmp_path), enable_dataloader=False)
    capture = CheckerCapture(config)
    capture.arm()
    capture.turn("ON")
    torch.relu(torch.ones(2))
    config.update_config(real_data=True)
    assert "changed after the capture has begun; they do not count" in capsys.readouterr().out
    capture.turn("OFF")
    file = tmp_path / f"forward_info_{os.getpid()}.json"
    assert f"API information of this run is in {file} and" in capsys.readouterr().out
    with pytest.raises(TensorprobeError, match="the switch is 'on', wanted 'ON' or 'OFF'"):
        capture.turn("on")


def own_dump(folder: Path, **fields: Any) -> RankDump:
    net, x = same_net(), same_input()
    with PrecisionDebugger.from_config(load_config(dump_path=folder, **fields)):
        net(x).backward()
    (part,) = open_dump(folder).parts
    return part


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_it_holds_what_a_dump_of_our_own_holds(tmp_path: Path, task: str) -> None:
    own = own_dump(tmp_path / "own", task=task)
    out = tmp_path / "out"
    out.mkdir()
    write_checker_files(own, out, process=7)
    (part,) = open_dump(out).parts
    assert sorted(part.names) == sorted(own.names) and not part.gaps
    compared = 0
    for call in own:
        there = part.call(call.name)
        assert part.stack(call.name) == own.stack(call.name)
        # Its files have what went in.
        wanted = [leaf for leaf in call.leaves() if leaf.section in ("input", "kwargs")]
        for mine, theirs in zip(wanted, there.leaves(), strict=True):
            assert (mine.section, mine.path) == (theirs.section, theirs.path)
            old, new = mine.value, theirs.value
            if not isinstance(old, TensorValue):
                assert new == old
                continue
            assert isinstance(new, TensorValue)
            assert (new.dtype, new.shape) == (old.dtype, old.shape)
            if task == "tensor":
                # Bit for bit, bfloat16 as well.
                assert own.load(old).array.tobytes() == part.load(new).array.tobytes()
            elif old.max == old.max:
                assert (new.max, new.min) == (old.max, old.min)
            compared += 1
    assert compared > 35


def test_files_have_the_form_of_the_real_ones(tmp_path: Path) -> None:
    own = own_dump(tmp_path / "own")
    write_checker_files(own, tmp_path, process=7)
    texts = {}
    for kind in ("forward", "backward", "stack"):
        (real,) = REAL.glob(f"{kind}_info_*.json")
        texts[kind] = real.read_text(), (tmp_path / f"{kind}_info_7.json").read_text()
    for kind in ("forward", "backward"):
        real_text, our_text = texts[kind]
        real_lines, our_lines = real_text.splitlines(), our_text.splitlines()
        assert our_lines[0] == real_lines[0] == "{" and our_lines[-1] == real_lines[-1] == "}"
        assert all(line.endswith(",") for line in our_lines[1:-2])
        assert not our_lines[-2].endswith(",") and not our_text.endswith("\n")
        # A call of the same kind looks the same, to the keys and types of what it holds.
        calls = json.loads(real_text)
        for key in ("Functional*conv2d*0", "Functional*batch_norm*0", "Functional*linear*0"):
            assert shape_of(json.loads(our_text)[key]) == shape_of(calls[key])
        assert shape_of(json.loads(our_text)["Tensor*__add__*1"]) == shape_of(
            calls["Tensor*__add__*1"]
        )
    real_text, our_text = texts["stack"]
    for text in (real_text, our_text):
        assert text.startswith('{\n\n    "Functional*conv2d*0": [\n        "File ')
        assert '\n    ]\n,\n\n    "' in text and text.endswith('"\n    ]\n\n}')


def shape_of(value: Any) -> Any:
    """Return what a value is made of, without its numbers."""
    if isinstance(value, list):
        return [shape_of(item) for item in value]
    if isinstance(value, dict):
        return [(key, shape_of(item)) for key, item in value.items()]
    return type(value)


def test_a_link_among_the_folders_is_not_written_through(tmp_path: Path) -> None:
    own = own_dump(tmp_path / "own", task="tensor")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "forward_real_data").symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a link, which no dump is written through"):
        write_checker_files(own, tmp_path, process=7)
    # All or nothing, and nothing outside.
    assert list(elsewhere.iterdir()) == [] and not files_in(tmp_path)


def test_results_are_the_same_and_no_hook_stays(tmp_path: Path) -> None:
    def gradients() -> list[torch.Tensor]:
        net = same_net()
        net(same_input()).backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    alone = gradients()
    config = CheckerConfig()
    config.update_config(dump_path=str(tmp_path), enable_dataloader=False, real_data=True)
    capture = CheckerCapture(config)
    capture.turn("ON")
    watched = gradients()
    capture.turn("OFF")
    assert len(alone) == len(watched) == 6
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert torch._C._len_torch_function_stack() == 0
    # No copy of the data, and nothing of the way there, is left.
    assert not list(tmp_path.glob("unfinished*"))
    data = list(tmp_path.rglob("*.pt"))
    inodes = [os.stat(file).st_ino for file in data]
    assert data and all(os.stat(f).st_nlink == inodes.count(os.stat(f).st_ino) for f in data)


def test_a_training_machine_needs_torch_and_numpy_alone(tmp_path: Path) -> None:
    program = """
import sys
for name in ("jiter", "yaml", "rich", "rich_argparse", "polars"):
    sys.modules[name] = None
import torch
import ptdbg_ascend
from ptdbg_ascend import *
import api_accuracy_checker.dump as DP
set_dump_path("./dump")
register_hook(torch.nn.Linear(1, 1), acc_cmp_dump)
set_dump_switch("ON")
torch.relu(torch.ones(2))
set_dump_switch("OFF")
DP.msCheckerConfig.update_config(enable_dataloader=False)
DP.dump.set_dump_switch("ON")
torch.relu(torch.ones(2))
"""
    ended = run_script(program, tmp_path)
    assert ended.returncode == 0 and ended.stderr == ""
    assert "Torch*relu*0" in files_in(tmp_path)["forward"]
    assert (tmp_path / "dump/ptdbg_dump_v3.4/rank0/dump.pkl").exists()
