"""What seed 002 says of ptdbg_ascend: what a script may rely on, and what cannot go wrong."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from script_runs import run_script
from seed_scripts import BEGIN, END

from tensorprobe import open_dump

TOOL = "ptdbg_ascend"
STEP = "import torch\nx = torch.ones(2, requires_grad=True)\ntorch.relu(x * 2).sum().backward()\n"


def names_in(folder: Path) -> list[str]:
    return [call.name for part in open_dump(folder).parts for call in part.calls()]


def test_the_switch_says_that_it_is_off_and_the_pkl_is_there(tmp_path: Path) -> None:
    ended = run_script(f"{BEGIN[TOOL]}{STEP}{END[TOOL]}", tmp_path)
    assert ended.code == 0, ended
    assert "Dump switch is turned off" in ended.out + ended.err
    assert list((tmp_path / "dump").rglob("*.pkl")) and list((tmp_path / "dump").rglob("*.npy"))
    assert any("relu" in name for name in names_in(tmp_path / "dump"))


def test_a_run_that_exits_before_the_switch_is_off_has_its_calls_too(tmp_path: Path) -> None:
    ended = run_script(f"{BEGIN[TOOL]}{STEP}exit()\n{END[TOOL]}", tmp_path)
    assert ended.code == 0, ended
    assert any("relu" in name for name in names_in(tmp_path / "dump"))


def test_a_second_dump_replaces_the_first_and_a_tag_keeps_both(tmp_path: Path) -> None:
    for tag, call in (("one", "relu"), ("one", "tanh"), ("two", "relu")):
        script = BEGIN[TOOL].replace("'all'", repr(tag)) + STEP.replace("relu", call) + END[TOOL]
        assert run_script(script, tmp_path).code == 0
    one, two = (
        [folder for folder in (tmp_path / "dump").iterdir() if tag in folder.name]
        for tag in ("one", "two")
    )
    assert len(one) == len(two) == 1
    assert any("tanh" in name for name in names_in(one[0]))
    assert not any("relu" in name for name in names_in(one[0]))
    assert any("relu" in name for name in names_in(two[0]))


def test_every_model_is_dumped_whichever_one_is_handed_over(tmp_path: Path) -> None:
    script = (
        f"{BEGIN[TOOL]}import torch\n"
        "first, second = torch.nn.ReLU(), torch.nn.Tanh()\n"
        f"second(first(torch.ones(2)))\n{END[TOOL]}"
    )
    assert run_script(script, tmp_path).code == 0
    names = names_in(tmp_path / "dump")
    assert any("relu" in name for name in names) and any("tanh" in name for name in names)


def test_each_rank_has_a_folder_and_whole_files(tmp_path: Path) -> None:
    for rank in range(2):
        script = BEGIN[TOOL].replace("rank=0", f"rank={rank}") + STEP + END[TOOL]
        assert run_script(script, tmp_path).code == 0
    files = sorted((tmp_path / "dump").rglob("*.pkl"))
    assert [file.parent.name for file in files] == ["rank0", "rank1"]
    for file in files:
        assert any("relu" in name for name in names_in(file))


@pytest.mark.parametrize(
    "order",
    [
        "register_hook(model, acc_cmp_dump, rank=0)\nset_dump_path('./dump')\n",
        "set_dump_path('./old')\nset_dump_path('./dump')\n"
        "register_hook(model, acc_cmp_dump, rank=0)\nregister_hook(model, acc_cmp_dump, rank=0)\n",
    ],
)
def test_no_order_of_the_functions_ends_in_a_folder_that_is_no_file(
    order: str, tmp_path: Path
) -> None:
    script = f"from ptdbg_ascend import *\nimport torch\nmodel = torch.nn.Linear(2, 2)\n{order}"
    ended = run_script(f"{script}set_dump_switch('ON')\n{STEP}{END[TOOL]}", tmp_path)
    assert ended.code == 0 and "IsADirectoryError" not in ended.err, ended
    assert any("relu" in name for name in names_in(tmp_path / "dump"))


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    script = BEGIN[TOOL].replace("torch.nn.Linear(2, 2)", "lambda x: x")
    ended = run_script(script, tmp_path)
    assert ended.code != 0 and "Please register hooks to nn.Module" in ended.err, ended


def test_data_have_the_type_that_the_pkl_says(tmp_path: Path) -> None:
    call = "torch.relu(torch.ones(2, dtype=torch.float16))\n"
    ended = run_script(f"{BEGIN[TOOL]}{call}{END[TOOL]}", tmp_path)
    assert ended.code == 0, ended
    (file,) = (tmp_path / "dump").rglob("*relu*forward*output*.npy")
    (lines,) = (tmp_path / "dump").rglob("*.pkl")
    assert numpy.load(file).dtype == numpy.float16
    assert "torch.float16" in lines.read_text() and "torch.float32" not in lines.read_text()


def test_following_a_dataloader_ends_the_run_as_announced(tmp_path: Path) -> None:
    script = (
        "from ptdbg_ascend import *\nimport torch\n"
        "debugger = PrecisionDebugger(dump_path='./dump', hook_name='dump', step=[0],"
        " enable_dataloader=True)\n"
        "debugger.configure_hook(mode='api_stack')\n"
        "for batch in torch.utils.data.DataLoader(torch.ones(6, 2)):\n    torch.relu(batch)\n"
        "print('went on')\n"
    )
    ended = run_script(script, tmp_path)
    assert ended.code == 1 and "went on" not in ended.out
    assert ended.err.splitlines()[-1].startswith("Exception: ptdbg: exit after iteration"), ended
    assert any("relu" in name for name in names_in(tmp_path / "dump"))
