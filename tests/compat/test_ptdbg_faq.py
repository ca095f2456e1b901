"""The FAQ of seed 002, entry by entry: what it is about cannot happen here, or works as it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from older_runs import lines_of, run_python, run_script, same_input, same_net
from torch.nn import functional

from conftest import DATA
from ptdbg_ascend import (
    PrecisionDebugger,
    acc_cmp_dump,
    compare,
    compare_distributed,
    parse,
    register_hook,
    set_dump_path,
    set_dump_switch,
)
from tensorprobe import open_dump

PTDBG = DATA / "peer_dumps/ptdbg_ascend/2024-03/all"


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dump_step(path: str, **how: str) -> Path:
    net = same_net()
    set_dump_path(path, **how)
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON", mode="api_stack", filter_switch="OFF")
    net(same_input()).backward()
    set_dump_switch("OFF")
    (tag,) = Path(path).iterdir()
    return tag / "rank0"


def test_use_1_the_version_is_part_of_the_folder(at_home: Path) -> None:
    from ptdbg_ascend.common.version import __version__

    assert __version__ == "3.4"
    assert dump_step("./dump").parent.name == f"ptdbg_dump_v{__version__}"


def test_question_1_a_second_dump_replaces_the_first_and_a_tag_keeps_both(at_home: Path) -> None:
    first = dump_step("./dump") / "api_stack_dump.pkl"
    (first.with_suffix("") / "old.npy").write_bytes(b"old")
    second = dump_step("./dump") / "api_stack_dump.pkl"
    assert first == second and not (first.with_suffix("") / "old.npy").exists()
    assert [child.name for child in (at_home / "dump/ptdbg_dump_v3.4").iterdir()] == ["rank0"]
    net = same_net()
    set_dump_path("./dump", dump_tag="again")
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON")
    net(same_input())
    set_dump_switch("OFF")
    assert sorted(child.name for child in (at_home / "dump").iterdir()) == [
        "again_v3.4", "ptdbg_dump_v3.4"
    ]  # fmt: skip


def test_question_2_every_model_is_recorded_whichever_is_registered(at_home: Path) -> None:
    generator, critic = torch.nn.Linear(2, 2), torch.nn.Conv1d(1, 1, 1)
    set_dump_path("./dump")
    register_hook(generator, acc_cmp_dump)
    set_dump_switch("ON")
    critic(generator(torch.ones(1, 2))[None])
    set_dump_switch("OFF")
    (part,) = open_dump("dump/ptdbg_dump_v3.4").parts
    assert {"Functional.linear.0.forward", "Functional.conv1d.0.forward"} <= set(part.names)


def test_question_3_operators_are_recorded_with_the_mode_acl(at_home: Path) -> None:
    net = torch.nn.Linear(2, 2)
    debugger = PrecisionDebugger("./dump", "dump")
    debugger.configure_hook(mode="acl", scope=["Functional_linear_0_forward"], acl_config="x.json")
    debugger.start()
    net(torch.ones(1, 2))
    debugger.stop()
    debugger.step()
    (part,) = open_dump("dump/ptdbg_dump_v3.4").parts
    assert "Aten.addmm.0.forward" in part


def test_trouble_1_the_path_of_the_precheck_hides_nothing(at_home: Path) -> None:
    # What the tools are found by has the folder of both in it.
    program = """
import sys
sys.path.append(sys.path[1])
import api_accuracy_checker
from ptdbg_ascend import *
print(PrecisionDebugger.__name__, seed_all.__name__)
"""
    answer = run_script(program, at_home)
    assert answer.stdout == "PrecisionDebugger seed_all\n", answer.stderr


def test_trouble_2_each_rank_has_its_folder_and_whole_files(at_home: Path) -> None:
    program = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank):
    # The name of a machine need not lead to an address that it can be reached at.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from ptdbg_ascend import set_dump_path, register_hook, set_dump_switch, acc_cmp_dump
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
    net, x = torch.nn.Linear(2, 2), torch.full((1, 2), float(rank))
    set_dump_path("./dump")
    register_hook(net, acc_cmp_dump)
    set_dump_switch("ON", mode="api_stack")
    net(x).sum().backward()
    set_dump_switch("OFF")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    answer = run_script(program, at_home, str(at_home / "meeting"))
    assert answer.returncode == 0, answer.stderr
    tag = at_home / "dump/ptdbg_dump_v3.4"
    assert sorted(child.name for child in tag.iterdir()) == ["rank0", "rank1"]
    for rank in (0, 1):
        lines = lines_of(tag / f"rank{rank}/api_stack_dump.pkl")
        assert lines[0][:2] == ["Functional_linear_0_forward_input.0", 0]
        assert lines[0][5][0] == rank


def test_trouble_5_every_line_is_one_array_and_compares(at_home: Path) -> None:
    pkl = dump_step("./npu") / "api_stack_dump.pkl"
    assert all(isinstance(json.loads(line), list) for line in pkl.read_text().splitlines())


def test_trouble_7_nested_values_have_nested_numbers(at_home: Path) -> None:
    lstm = torch.nn.LSTM(2, 3)
    set_dump_path("./dump")
    register_hook(lstm, acc_cmp_dump)
    set_dump_switch("ON")
    lstm(torch.ones(1, 1, 2))
    set_dump_switch("OFF")
    folder = at_home / "dump/ptdbg_dump_v3.4/rank0/dump"
    assert (folder / "VF_lstm_0_forward_input.1.0.npy").exists()
    assert (folder / "VF_lstm_0_forward_input.1.1.npy").exists()


def test_trouble_8_without_off_the_pkl_is_there_all_the_same(at_home: Path) -> None:
    program = """
import torch
from ptdbg_ascend import *
set_dump_path("./dump")
register_hook(torch.nn.Linear(1, 1), acc_cmp_dump)
set_dump_switch("ON")
torch.relu(torch.ones(2))
exit()
"""
    answer = run_script(program, at_home)
    assert "Dump switch is turned off" not in answer.stdout
    assert (at_home / "dump/ptdbg_dump_v3.4/rank0/dump.pkl").exists()
    answer = run_script(program.replace("exit()", "set_dump_switch('OFF')"), at_home)
    assert "Dump switch is turned off" in answer.stdout.splitlines()[-1]


@pytest.mark.parametrize("stack_mode", [True, False])
def test_trouble_9_stacks_are_no_obstacle(at_home: Path, stack_mode: bool) -> None:
    for side in ("npu", "gpu"):
        dump_step(f"./{side}_dump")
    param = {
        "npu_pkl_path": "./npu_dump/ptdbg_dump_v3.4/rank0/api_stack_dump.pkl",
        "bench_pkl_path": "./gpu_dump/ptdbg_dump_v3.4/rank0/api_stack_dump.pkl",
        "npu_dump_data_dir": "./npu_dump/ptdbg_dump_v3.4/rank0/api_stack_dump",
        "bench_dump_data_dir": "./gpu_dump/ptdbg_dump_v3.4/rank0/api_stack_dump",
        "is_print_compare_log": True,
    }
    compare(param, "./output", stack_mode=stack_mode)
    assert len(list((at_home / "output").glob("compare_result_*.xlsx"))) == 1


def test_trouble_9_ours_and_the_real_tools_compare(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = dump_step("./npu_dump")
    (real,) = (PTDBG / "npu").rglob("api_stack_dump.pkl")
    param = {
        "npu_pkl_path": str(rank / "api_stack_dump.pkl"),
        "bench_pkl_path": str(real),
        "npu_dump_data_dir": str(rank / "api_stack_dump"),
        "bench_dump_data_dir": str(real.with_suffix("")),
        "is_print_compare_log": True,
    }
    compare(param, "./output", stack_mode=True)
    (csv_or_xlsx,) = (at_home / "output").glob("compare_result_*.xlsx")
    import openpyxl

    titles, *rows = openpyxl.load_workbook(csv_or_xlsx)["compare_result"].values
    verdict = titles.index("Accuracy Reached or Not")
    verdicts = {row[0]: row[verdict] for row in rows if "forward" in str(row[0])}
    assert verdicts["Functional.linear.0.forward.output.0"] == "Yes"
    assert list(verdicts.values()).count("Yes") > 20


def test_trouble_11_any_path_can_be_written_to(at_home: Path) -> None:
    rank = dump_step("./abc++ (ü)/dump")
    assert len(open_dump(rank).parts[0]) > 20


def test_trouble_12_hooks_and_paths_may_come_several_times_and_in_any_order(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_dump_path()  # As it is before anybody says a path.
    net = same_net()
    register_hook(net, acc_cmp_dump)
    assert capsys.readouterr().out == (
        "[INFO] register_hook() came before set_dump_path(): call set_dump_path() first, or the "
        "dump goes into the current folder\n"
    )
    set_dump_path("./first")
    set_dump_path("./dump")
    register_hook(net, acc_cmp_dump)
    register_hook(net, acc_cmp_dump)
    for _ in range(2):
        set_dump_switch("ON", mode="api_stack")
        net(same_input()).backward()
        set_dump_switch("OFF")
    rank = at_home / "dump/ptdbg_dump_v3.4/rank0"
    assert (rank / "api_stack_dump").is_dir() and (rank / "api_stack_dump.pkl").is_file()
    names = [line[0] for line in lines_of(rank / "api_stack_dump.pkl")]
    assert len(names) == len(set(names)) and not (at_home / "first").exists()


def test_trouble_13_the_gradient_of_a_weight_is_there_whatever_the_input(at_home: Path) -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    set_dump_path("./dump")
    register_hook(torch.nn.Linear(1, 1), acc_cmp_dump)
    set_dump_switch("ON")
    torch.ones(4, 5, 2).matmul(weight.t()).sum().backward()
    set_dump_switch("OFF")
    lines = {line[0]: line for line in lines_of(at_home / "dump/ptdbg_dump_v3.4/rank0/dump.pkl")}
    assert lines["Tensor_matmul_0_backward_output.1"][4] == [2, 3]


def test_trouble_14_the_pkl_has_the_dtype_and_npy_keeps_float16(at_home: Path) -> None:
    set_dump_path("./dump")
    register_hook(torch.nn.Linear(1, 1), acc_cmp_dump)
    set_dump_switch("ON")
    torch.relu(torch.ones(2, dtype=torch.float16))
    torch.neg(torch.ones(2, dtype=torch.bfloat16))
    set_dump_switch("OFF")
    rank = at_home / "dump/ptdbg_dump_v3.4/rank0"
    assert np.load(rank / "dump/Torch_relu_0_forward_input.0.npy").dtype == np.float16
    # numpy has no bfloat16: the values are there, and the pkl says what they were.
    assert np.load(rank / "dump/Torch_neg_0_forward_output.npy").tolist() == [-1.0, -1.0]
    lines = {line[0]: line for line in lines_of(rank / "dump.pkl")}
    assert lines["Torch_neg_0_forward_output"][3] == "torch.bfloat16"


@pytest.mark.parametrize("model", [None, {"net": 1}, "net"])
def test_trouble_16_what_is_no_module_is_refused_in_its_words(model: object) -> None:
    with pytest.raises(AssertionError, match=r"^Please register hooks to nn\.Module"):
        register_hook(model, acc_cmp_dump)


def test_troubles_17_to_19_slices_gelu_and_transposes_work_while_it_is_on(at_home: Path) -> None:
    gelu, getitem = functional.gelu, torch.Tensor.__getitem__
    set_dump_path("./dump")
    register_hook(torch.nn.Linear(1, 1), acc_cmp_dump)
    set_dump_switch("ON")
    x = torch.arange(6.0).reshape(2, 3)
    assert functional.gelu is gelu and torch.Tensor.__getitem__ is getitem
    assert x[1, 2].item() == 5 and len(x[0]) == 3 and x[..., None].shape == (2, 3, 1)
    with pytest.raises(IndexError, match="too many indices"):
        x[0, 0, 0, 0]
    assert torch.equal(x.t(), x.transpose(0, 1)) and functional.gelu(x).shape == (2, 3)
    set_dump_switch("OFF")
    (part,) = open_dump("dump/ptdbg_dump_v3.4").parts
    assert {"Tensor.t.0.forward", "Tensor.transpose.0.forward"} <= set(part.names)


def test_parse_shows_a_call_and_its_stack(
    at_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pkl = dump_step("./dump") / "api_stack_dump.pkl"
    capsys.readouterr()
    parse(pkl, "Functional_batch_norm_0_forward")
    shown = capsys.readouterr().out
    assert "Functional.batch_norm.0.forward" in shown and "older_runs.py" in shown
    parse(str(pkl), "Torch_s")
    shown = capsys.readouterr().out
    assert "Torch.split.0.forward" in shown and "Torch.sum.0.backward" in shown
    assert "Torch.mul" not in shown


def test_many_ranks_are_compared_by_the_folder_of_the_tag(at_home: Path) -> None:
    for side in ("npu_dump", "gpu_dump"):
        for rank in (0, 1):
            net = same_net()
            set_dump_path(side, dump_tag="dump_conv2d")
            register_hook(net, acc_cmp_dump, rank=rank)
            set_dump_switch("ON", mode="api_stack")
            net(same_input()).backward()
            set_dump_switch("OFF")
    compare_distributed("npu_dump/dump_conv2d_v3.4", "gpu_dump/dump_conv2d_v3.4", "./output")
    found = sorted(child.name[:20] for child in (at_home / "output").glob("compare_*.xlsx"))
    assert found == ["compare_result_rank0", "compare_result_rank1"]


def test_it_runs_where_nothing_but_a_compare_is_asked_for(at_home: Path) -> None:
    program = "import sys, ptdbg_ascend; print('torch' in sys.modules)"
    assert run_python(["-c", program], at_home).stdout == "False\n"
