"""Capturing with ptdbg_ascend: its functions, its debugger, and what they leave alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from older_runs import lines_of, run_script, same_input, same_net
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import ptdbg_ascend
from ptdbg_ascend import (
    PrecisionDebugger,
    acc_cmp_dump,
    overflow_check,
    register_hook,
    set_dump_path,
    set_dump_switch,
    set_overflow_check_switch,
)
from tensorprobe import TensorprobeError, open_dump, save
from tensorprobe.capture.current import current_debugger

BEGINNING = """
import os, signal, sys
import torch
from ptdbg_ascend import *

set_dump_path("./dump")
net = torch.nn.Linear(2, 2)
register_hook(net, acc_cmp_dump)
"""


def stems(folder: Path) -> list[str]:
    return sorted(str(pkl.relative_to(folder)) for pkl in folder.rglob("*.pkl"))


def step(net: torch.nn.Module) -> None:
    net(same_input()).backward()


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(8.0).reshape(8, 1)), batch_size=2)


def test_everything_of_the_manual_is_exported() -> None:
    space: dict[str, Any] = {}
    exec("from ptdbg_ascend import *", space)
    wanted = (
        "register_hook set_dump_path set_dump_switch set_overflow_check_switch seed_all compare "
        "acc_cmp_dump overflow_check parse compare_distributed set_backward_input PrecisionDebugger"
    )
    assert set(wanted.split()) <= set(space)
    with pytest.raises(AttributeError, match="has no attribute 'dump_all'"):
        ptdbg_ascend.dump_all  # noqa: B018


def test_the_switch_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = same_net()
    set_dump_path(tmp_path)
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON")
    said = capsys.readouterr().out
    folder = tmp_path / "ptdbg_dump_v3.4"
    assert f"[INFO] Dump switch is turned on. Dump data will be saved to {folder}.\n" in said
    assert f"Until it ends its calls are in {folder}/unfinished_{os.getpid()}" in said
    set_dump_switch("ON")
    assert "Dump switch is turned on already" in capsys.readouterr().out
    step(net)
    set_dump_switch("OFF")
    assert capsys.readouterr().out == "[INFO] Dump switch is turned off.\n"
    assert stems(folder) == ["rank0/dump.pkl"]
    # It says so without a reason, too: scripts look for the line.
    set_dump_switch("OFF")
    assert capsys.readouterr().out == "[INFO] Dump switch is turned off.\n"
    # Where the files are meanwhile is said once.
    set_dump_switch("ON")
    assert "Until it ends" not in capsys.readouterr().out


def test_without_a_hook_every_call_is_recorded(tmp_path: Path) -> None:
    program = """
import torch
from ptdbg_ascend import *
set_dump_path("./dump")
set_dump_switch("ON")
torch.relu(torch.ones(2))
set_dump_switch("OFF")
"""
    said = run_script(program, tmp_path).stdout
    assert "set_dump_switch() came without register_hook(); every call is recorded" in said
    assert stems(tmp_path) == ["dump/ptdbg_dump_v3.4/rank0/dump.pkl"]


def test_values_saved_by_name_are_not_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_dump_path(tmp_path)
    register_hook(same_net(), acc_cmp_dump)
    set_dump_switch("ON")
    save(torch.relu(torch.ones(2)), "x")
    set_dump_switch("OFF")
    assert stems(tmp_path) == ["ptdbg_dump_v3.4/rank0/dump.pkl"]
    (file,) = tmp_path.rglob("debug.json")
    assert f"values that were saved by name are in {file}" in caplog.text
    assert "x.0.debug" in open_dump(file).parts[0]


def test_rank_and_tag_name_the_folders(tmp_path: Path) -> None:
    net = same_net()
    set_dump_path(tmp_path, dump_tag="all")
    register_hook(net, acc_cmp_dump, rank=5)
    set_dump_switch("ON", mode="api_stack")
    step(net)
    set_dump_switch("OFF")
    assert stems(tmp_path) == ["all_v3.4/rank5/api_stack_dump.pkl"]
    (part,) = open_dump(tmp_path / "all_v3.4").parts
    assert part.info.rank == 5 and part.info.tool == "ptdbg_ascend"


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: set_dump_switch("on"), "the switch is 'on', wanted 'ON' or 'OFF'"),
        (lambda: set_dump_switch("ON", mode="everything"), "mode is 'everything', wanted one of"),
        (lambda: set_dump_switch("ON", mode="list"), "mode 'list' wants names in scope"),
        (lambda: set_dump_switch("ON", mode="api_list"), "mode 'api_list' wants names in api_list"),
        (lambda: set_dump_switch("ON", mode="acl"), "mode 'acl' wants names in scope"),
        (lambda: set_dump_switch("ON", mode="range", scope=["Torch_a_0_forward"]),
         "wanted the first and the last call of the range"),
        (lambda: set_dump_switch("ON", mode="range", scope=["relu", "Torch_a_0_forward"]),
         "scope holds 'relu': not the whole name of a call"),
        (lambda: set_dump_switch("ON", scope=3), "scope is 3, wanted a list of names"),
        (lambda: set_dump_switch("ON", summary_mode="sum"), "summary_mode is 'sum', wanted one of"),
        (lambda: set_dump_switch("ON", filter_switch=1), "filter_switch is 1, wanted 'ON' or"),
        (lambda: set_dump_switch("ON", dump_mode=["sideways"]), "data_mode holds 'sideways'"),
        (lambda: set_dump_path("x", dump_tag="a/b"), "dump_tag is 'a/b', wanted a word"),
        (lambda: set_dump_path(3), "dump_path is 3, wanted a path"),
        (lambda: register_hook(torch.nn.Linear(1, 1), print), "wanted acc_cmp_dump or overflow_"),
        (lambda: register_hook(torch.nn.Linear(1, 1), acc_cmp_dump, rank="0"), "rank is '0', want"),
        (lambda: register_hook(torch.nn.Linear(1, 1), acc_cmp_dump, dump_mode="x"),
         "dump_mode is 'x', wanted 'api', 'acl' or 'model'"),
        (lambda: PrecisionDebugger("x"), "hook_name is None, wanted 'dump' or 'overflow_check'"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_line(
    call: Any, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TensorprobeError) as caught:
        call()
    assert complaint in str(caught.value) and "\n" not in str(caught.value)
    assert current_debugger() is None or current_debugger().is_closed  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == []


def test_the_environment_may_name_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path))
    net = same_net()
    set_dump_path()
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON")
    step(net)
    set_dump_switch("OFF")
    assert stems(tmp_path) == ["dump_data/ptdbg_dump_v3.4/rank0/dump.pkl"]


def test_the_debugger_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = same_net()
    debugger = PrecisionDebugger(dump_path=tmp_path, hook_name="dump", step=[1])
    for _ in range(3):
        # On the class as well, and twice in a step.
        debugger.start()
        net(same_input())
        debugger.stop()
        PrecisionDebugger.start()
        net(same_input())
        PrecisionDebugger.stop()
        debugger.step()
    assert stems(tmp_path) == ["ptdbg_dump_v3.4/step1/rank0/api_stack_dump.pkl"]
    (part,) = open_dump(tmp_path / "ptdbg_dump_v3.4").parts
    assert part.info.step == 1
    assert "Functional.linear.1.forward" in part and "Functional.linear.2.forward" not in part
    assert capsys.readouterr().out.count("Dump switch is turned off") == 2


def test_the_debugger_is_configured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = same_net()
    debugger = PrecisionDebugger(tmp_path, "dump")
    debugger.configure_hook(
        mode="api_list",
        api_list=["linear"],
        filter_switch="ON",
        acl_config="./dump.json",
        backward_input=[],
        input_output_mode=["forward", "output"],
        summary_only=True,
    )
    debugger.start()
    debugger.configure_hook(mode="all")
    assert "configure_hook() is ignored: the capture has begun" in caplog.text
    step(net)
    debugger.stop()
    debugger.step()
    (pkl,) = tmp_path.rglob("*.pkl")
    assert pkl.name == "api_list_dump.pkl" and not pkl.with_suffix("").exists()
    assert [line[0] for line in lines_of(pkl)] == ["Functional_linear_0_forward_output"]
    assert not caplog.records[1:]


def test_a_debugger_with_a_model_records_modules(tmp_path: Path) -> None:
    net = same_net()
    debugger = PrecisionDebugger(tmp_path, "dump", model=net)
    debugger.configure_hook(mode="list", scope=["fc_Linear_0_forward", "conv_Conv2d"])
    debugger.start()
    step(net)
    debugger.stop()
    debugger.close()
    (pkl,) = tmp_path.rglob("*.pkl")
    calls = {line[0].partition("_input")[0] for line in lines_of(pkl) if "_input" in line[0]}
    assert calls == {
        "fc_Linear_0_forward", "conv_Conv2d_0_forward", "conv_Conv2d_0_backward"
    }  # fmt: skip


def test_a_dataloader_ends_the_run_with_the_words_of_the_manual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = _BaseDataLoaderIter.__next__
    debugger = PrecisionDebugger(tmp_path, "dump", step=[0, 2], enable_dataloader=True)
    debugger.configure_hook(summary_mode="summary")
    with pytest.raises(Exception, match=r"^ptdbg: exit after iteration \[0, 2\]$") as caught:
        for (batch,) in batches():
            torch.relu(batch)
    assert type(caught.value) is Exception
    assert _BaseDataLoaderIter.__next__ is original
    assert stems(tmp_path / "ptdbg_dump_v3.4") == [
        "step0/rank0/api_stack_dump.pkl",
        "step2/rank0/api_stack_dump.pkl",
    ]
    assert capsys.readouterr().out.count("Dump switch is turned off.") == 2


def test_steps_that_never_come_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for wanted, told in (
        ([7], ["step 7 was wanted and never came: the last one was step 2; nothing was captured"]),
        ([1, 3, 9], ["steps 3, 9 were wanted and never came: the last one was step 2"]),
        ([2], []),
    ):
        caplog.clear()
        debugger = PrecisionDebugger(tmp_path, "dump", step=wanted)
        for number in range(3):
            debugger.start()
            torch.relu(torch.ones(2))
            debugger.stop()
            if number < 2:
                debugger.step()
        debugger.close()
        assert [r.getMessage() for r in caplog.records if "came" in r.getMessage()] == told


def test_only_the_wanted_rank_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        debugger = PrecisionDebugger(tmp_path, "dump", rank=1)
        debugger.start()
        step(same_net())
        debugger.stop()
        debugger.step()
    assert stems(tmp_path) == ["ptdbg_dump_v3.4/step0/rank1/api_stack_dump.pkl"]


def test_overflows_get_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    set_dump_path("./dump")
    register_hook(torch.nn.Linear(1, 1), overflow_check, overflow_nums=2)
    torch.relu(torch.ones(2))
    torch.exp(torch.full((2,), 1000.0))
    set_overflow_check_switch("OFF")
    folder = tmp_path / "dump/ptdbg_dump_v3.4/rank0"
    pkl = folder / "Torch_exp_0_forward_1.pkl"
    assert f"[overflow 1 times]: dump file is saved in '{pkl}'." in capsys.readouterr().out
    assert [line[0] for line in lines_of(pkl)] == [
        "Torch_exp_0_forward_input.0",
        "Torch_exp_0_forward_output",
    ]
    process = os.getpid()
    assert sorted(child.name for child in tmp_path.iterdir()) == [
        f"backward_info_{process}.json", "dump", f"forward_info_{process}.json",
        "forward_real_data", f"stack_info_{process}.json",
    ]  # fmt: skip
    # Turned on again it goes on: nothing of before is lost, and names stay apart.
    for function in (torch.sqrt, torch.exp):
        set_overflow_check_switch("ON")
        function(torch.full((2,), -1.0 if function is torch.sqrt else 2000.0))
        set_overflow_check_switch("OFF")
    assert stems(folder) == [
        "Torch_exp_0_forward_1.pkl", "Torch_exp_0_forward_3.pkl", "Torch_sqrt_0_forward_2.pkl"
    ]  # fmt: skip
    for kind in ("forward", "stack"):
        described = json.loads((tmp_path / f"{kind}_info_{process}.json").read_text())
        keys = [key for key in described if "full" not in key]
        assert keys == ["Torch*exp*0", "Torch*sqrt*0", "Torch*exp*1"]
    part = open_dump(tmp_path / f"forward_info_{process}.json").parts[0]
    calls = [part.call(f"Torch.exp.{number}.forward") for number in (0, 1)]
    assert [part.load(call.inputs[0]).values()[0] for call in calls] == [1000, 2000]
    said = capsys.readouterr().out
    assert "[overflow 3 times]" in said and "are described in" not in said


def test_overflows_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    rank = tmp_path / "dump/ptdbg_dump_v3.4/rank0"
    program = """
import sys, torch
from ptdbg_ascend import *
set_dump_path("./dump")
register_hook(torch.nn.Linear(1, 1), overflow_check)
getattr(torch, sys.argv[1])(torch.full((2,), 1000.0))
set_overflow_check_switch("OFF")
"""
    assert "described in" in run_script(program, tmp_path, "exp").stdout
    (rank / "dump.pkl").write_text("of another kind")
    assert (rank / "Torch_exp_0_forward_1").is_dir()
    run_script(program, tmp_path, "cosh")
    assert sorted(child.name for child in rank.iterdir()) == [
        "Torch_cosh_0_forward_1", "Torch_cosh_0_forward_1.pkl", "dump.pkl"
    ]  # fmt: skip


def test_steps_of_an_earlier_run_are_told(tmp_path: Path) -> None:
    program = """
import sys, torch
from ptdbg_ascend import *
debugger = PrecisionDebugger("./dump", "dump")
for _ in range(int(sys.argv[1])):
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
"""
    assert "earlier run" not in run_script(program, tmp_path, "3").stderr
    said = run_script(program, tmp_path, "1").stderr
    tag = tmp_path / "dump/ptdbg_dump_v3.4"
    assert said.count("earlier run") == 1
    assert f"{tag} holds steps 1, 2 of an earlier run: what this run writes again is" in said


def test_a_path_that_comes_while_the_switch_is_on_is_for_the_next_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = same_net()
    set_dump_path(tmp_path / "a")
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON")
    set_dump_path(tmp_path / "a")
    assert "set_dump_path() came" not in capsys.readouterr().out
    set_dump_path(tmp_path / "b")
    said = capsys.readouterr().out
    assert f"what is recorded now still goes to {tmp_path / 'a/ptdbg_dump_v3.4'}; the next" in said
    step(net)
    set_dump_switch("OFF")
    assert stems(tmp_path) == ["a/ptdbg_dump_v3.4/rank0/dump.pkl"]
    set_dump_switch("ON")
    step(net)
    set_dump_switch("OFF")
    assert "b/ptdbg_dump_v3.4/rank0/dump.pkl" in stems(tmp_path)


def test_overflows_of_several_steps_are_all_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    debugger = PrecisionDebugger("./dump", "overflow_check")
    debugger.configure_hook(overflow_nums=-1)
    for function in (torch.exp, torch.relu, torch.cosh):
        debugger.start()
        function(torch.full((2,), 1000.0))
        debugger.stop()
        debugger.step()
    debugger.close()
    folder = tmp_path / "dump/ptdbg_dump_v3.4"
    assert stems(folder) == [
        "step0/rank0/Torch_exp_0_forward_1.pkl", "step2/rank0/Torch_cosh_0_forward_2.pkl"
    ]  # fmt: skip
    described = json.loads((tmp_path / f"forward_info_{os.getpid()}.json").read_text())
    assert {"Torch*exp*0", "Torch*cosh*0"} <= set(described)
    assert not (tmp_path / "step2").exists()


@pytest.mark.parametrize(
    ("hooked", "switched"),
    [
        ({}, {"mode": "acl", "scope": ["Functional_linear_0_forward"]}),
        ({"dump_mode": "acl"}, {"mode": "acl", "scope": ["Functional_linear_0_forward"]}),
        ({"dump_mode": "acl"}, {}),
        ({"dump_mode": "acl"}, {"mode": "api_stack"}),
        ({"dump_mode": "acl"}, {"mode": "list", "scope": ["Functional_linear_0_forward"]}),
    ],
)
def test_operators_below_a_call_are_a_dump_of_ours(
    hooked: dict[str, Any], switched: dict[str, Any], tmp_path: Path
) -> None:
    net = same_net()
    set_dump_path(tmp_path)
    register_hook(net, acc_cmp_dump, dump_config="./dump.json", **hooked)
    set_dump_switch("ON", **switched)
    step(net)
    set_dump_switch("OFF")
    assert ("Aten.convolution.0.forward" in open_dump(tmp_path / "ptdbg_dump_v3.4").parts[0]) == (
        "scope" not in switched
    )
    (part,) = open_dump(tmp_path / "ptdbg_dump_v3.4").parts
    assert part.info.level == "L2" and "Aten.addmm.0.forward" in part
    assert not list(tmp_path.rglob("unfinished*")) and not stems(tmp_path)


@pytest.mark.parametrize("mode", ["acl", "model"])
def test_a_search_for_overflows_says_that_it_has_no_dump_mode(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    set_dump_path("./dump")
    register_hook(torch.nn.Linear(1, 1), overflow_check, dump_mode=mode)
    assert f"dump_mode '{mode}' has no effect with overflow_check" in capsys.readouterr().out
    torch.exp(torch.full((2,), 1000.0))
    set_overflow_check_switch("OFF")
    assert stems(tmp_path) == ["dump/ptdbg_dump_v3.4/rank0/Torch_exp_0_forward_1.pkl"]


def test_a_run_that_exits_leaves_the_files(tmp_path: Path) -> None:
    ended = run_script(BEGINNING + "set_dump_switch('ON')\nnet(torch.ones(1, 2))\nexit()", tmp_path)
    assert ended.returncode == 0 and "turned off" not in ended.stdout and ended.stderr == ""
    assert stems(tmp_path) == ["dump/ptdbg_dump_v3.4/rank0/dump.pkl"]
    assert not list(tmp_path.rglob("unfinished*"))


def test_an_exception_and_ctrl_c_leave_the_files(tmp_path: Path) -> None:
    program = BEGINNING + "set_dump_switch('ON')\nnet(torch.ones(1, 2))\n"
    assert run_script(program + "raise OSError('mine')", tmp_path).returncode == 1
    assert stems(tmp_path) == ["dump/ptdbg_dump_v3.4/rank0/dump.pkl"]
    other = tmp_path / "other"
    other.mkdir()
    run_script(program + "os.kill(os.getpid(), signal.SIGINT)", other)
    assert stems(other) == ["dump/ptdbg_dump_v3.4/rank0/dump.pkl"]


def test_what_a_killed_run_recorded_is_where_it_said(tmp_path: Path) -> None:
    program = BEGINNING + "set_dump_switch('ON')\nnet(torch.ones(1, 2))\n"
    ended = run_script(program + "os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert ended.returncode == -signal.SIGKILL
    line = next(line for line in ended.stdout.splitlines() if "Until it ends" in line)
    folder = line.partition(" are in ")[2].partition(", ")[0]
    assert "Functional.linear.0.forward" in open_dump(folder).parts[0]
    # And it is no obstacle to the next run.
    again = run_script(program + "set_dump_switch('OFF')", tmp_path)
    assert again.returncode == 0 and again.stderr == ""
    assert stems(tmp_path) == ["dump/ptdbg_dump_v3.4/rank0/dump.pkl"]


def test_two_processes_without_ranks_do_not_mix(tmp_path: Path) -> None:
    program = """
import os, subprocess, sys, torch
from ptdbg_ascend import *
set_dump_path("./dump")
register_hook(torch.nn.Linear(1, 1), acc_cmp_dump)
set_dump_switch("ON")
getattr(torch, sys.argv[1])(torch.ones(2))
set_dump_switch("OFF")
if sys.argv[1] == "relu":
    # While this one goes on, another run of the same kind ends.
    subprocess.run([sys.executable, __file__, "neg"], check=True)
"""
    ended = run_script(program, tmp_path, "relu")
    assert ended.returncode == 0, ended.stderr
    parts = open_dump(tmp_path / "dump/ptdbg_dump_v3.4").parts
    assert [list(part.names) for part in parts] == [
        ["Torch.ones.0.forward", "Torch.neg.0.forward"],
        ["Torch.ones.0.forward", "Torch.relu.0.forward"],
    ]
    tag = tmp_path / "dump/ptdbg_dump_v3.4"
    first, second = sorted(child.name for child in tag.iterdir())
    assert first.startswith("proc") and second == "rank0"
    assert f"the files of this one are in {tag / first}. Give each its own `rank`" in ended.stdout


def test_a_folder_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    net = same_net()
    set_dump_path(tmp_path / "file")
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON")
    step(net)
    set_dump_switch("OFF")
    assert net.fc.weight.grad is not None
    (message,) = [record.getMessage() for record in caplog.records]
    assert "no dump can be written into" in message and "the run goes on" in message


def test_results_are_the_same_and_no_hook_stays(tmp_path: Path) -> None:
    def train(net: torch.nn.Module) -> list[torch.Tensor]:
        step(net)
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    alone = train(same_net())
    net = same_net()
    set_dump_path(tmp_path)
    register_hook(net, acc_cmp_dump)
    state, gelu = torch.get_rng_state(), torch.nn.functional.gelu
    set_dump_switch("ON", mode="api_stack")
    watched = train(net)
    set_dump_switch("OFF")
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert len(alone) == len(watched) == 6
    assert torch.equal(state, torch.get_rng_state()) and torch.nn.functional.gelu is gelu
    assert torch._C._len_torch_function_stack() == 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
