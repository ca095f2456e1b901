"""What the seeds show of capturing a run works as it is written."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from script_runs import run_script, run_shell
from seed_scripts import BEGIN, END, copy_compat
from seed_table import block

from tensorprobe import open_dump

FUSED = "npu_scaled_masked_softmax"
# What torch_npu has on an NPU, by the functions of torch.
OPERATORS = f"""
import torch

def {FUSED}(x, mask, scale=1.0, fixed_triu_mask=False):
    return torch.softmax((x * scale).masked_fill(mask, -10000.0), -1)
"""
LIST = "hook_module/support_wrap_ops.yaml"
# Where the packages lie in the repositories that the seeds speak of.
PLACES = {
    "msprobe": "mstt/debug/accuracy_tools",
    "ptdbg_ascend": "att/debug/accuracy_tools/ptdbg_ascend/src/python",
}


def fused_script(tool: str, key: str) -> str:
    """Return a training script that calls the function of the seed."""
    indented = textwrap.indent(block(key).code, "    ")
    return (
        f"{BEGIN[tool]}import torch\nimport torch_npu\n"
        f"class Attention(torch.nn.Module):\n    scale = 0.5\n{indented}\n"
        "    forward = npu_forward_fused_softmax\n"
        "mask = torch.ones(4, 4).triu(1).bool()\n"
        "Attention()(torch.randn(2, 4, 4, requires_grad=True), mask).sum().backward()\n"
        f"{END[tool]}"
    )


def list_with(lines: str, key: str) -> str:
    """Return the list of APIs with a fused operator under torch_npu, where it was not."""
    bare = "".join(line for line in lines.splitlines(keepends=True) if line.strip() != f"- {FUSED}")
    head, title, tail = bare.partition("torch_npu:\n")
    assert title, "the list of APIs has no torch_npu"
    indent = re.match(r"( *)-", tail)
    return head + title + textwrap.indent(block(key).code, indent[1] if indent else "  ") + tail


@pytest.mark.parametrize(
    ("tool", "function", "line"),
    [("msprobe", "000-1", "000-2"), ("ptdbg_ascend", "002-2", "002-3")],
)
def test_a_fused_operator_that_is_added_to_the_list_is_recorded(
    tool: str, function: str, line: str, tmp_path: Path
) -> None:
    """In the very file that the seed names; without the line it is not recorded."""
    packages = copy_compat(tmp_path / PLACES[tool], tool)
    file = packages / tool / ("pytorch/" if tool == "msprobe" else "") / LIST
    (tmp_path / "torch_npu.py").write_text(OPERATORS)
    whole = list_with(file.read_text(), line)
    for text, is_recorded in ((whole, True), (whole.replace(f"- {FUSED}\n", ""), False)):
        file.write_text(text)
        ended = run_script(fused_script(tool, function), tmp_path, paths=[packages])
        assert ended.code == 0, ended
        recorded = {
            call.name: call for part in open_dump(tmp_path / "dump").parts for call in part.calls()
        }
        found = [name for name in recorded if FUSED in name]
        assert bool(found) is is_recorded, sorted(recorded)
        if is_recorded:
            forward = recorded[f"NPU.{FUSED}.0.forward"]
            assert len(forward.inputs or ()) >= 2 and len(forward.outputs or ()) == 1


@pytest.mark.parametrize("tool", PLACES)
def test_what_is_commented_out_of_the_list_is_left_out(tool: str, tmp_path: Path) -> None:
    """As the seeds advise of `__getitem__`, `gelu`, `t` and `transpose`."""
    packages = copy_compat(tmp_path / PLACES[tool], tool)
    file = packages / tool / ("pytorch/" if tool == "msprobe" else "") / LIST
    text, count = re.subn(
        r"(?m)^( *)(- (?:__getitem__|gelu|t|transpose))$", r"\1# \2", file.read_text()
    )
    assert count >= 4
    calls = "x = torch.ones(2, 2)\nx[0]\nF.gelu(x)\nx.t()\nx.transpose(0, 1)\ntorch.relu(x)\n"
    script = f"import torch\nimport torch.nn.functional as F\n{BEGIN[tool]}{calls}{END[tool]}"
    left = []
    for lines in (file.read_text(), text):
        file.write_text(lines)
        ended = run_script(script, tmp_path, paths=[packages])
        assert ended.code == 0, ended
        left.append({call.name for part in open_dump(tmp_path / "dump").parts for call in part})
    names = ("__getitem__", "gelu", ".t.", "transpose", "relu")
    assert [any(name in call for call in left[0]) for name in names] == [True] * 5
    assert [any(name in call for call in left[1]) for name in names] == [False] * 4 + [True]


@pytest.mark.parametrize("key", ["000-3", "000-4", "002-6", "002-7"])
def test_an_overflow_is_found_on_the_device_that_was_chosen(key: str, tmp_path: Path) -> None:
    """Nothing asks an NPU for its overflow register, which ended in the error 107002."""
    begin = BEGIN["msprobe"].replace("task='tensor'", "task='overflow_check'")
    script = (
        f"import torch\nrank = 2\n{block(key).code}\n"
        f"assert torch.npu.current_device() == {2 if 'rank' in block(key).text else 0}\n"
        f"assert not hasattr(torch._C, '_clear_overflow_npu')\n{begin}"
        f"torch.full((3,), 3e38) * 10\n{END['msprobe']}"
    )
    ended = run_script(script, tmp_path, has_npu=True)
    assert ended.code == 0, ended
    names = [call.name for part in open_dump(tmp_path / "dump").parts for call in part.calls()]
    assert names == ["Tensor.__mul__.0.forward"]


@pytest.mark.parametrize("key", ["002-6", "002-7"])
def test_ptdbg_finds_an_overflow_on_the_device_that_was_chosen(key: str, tmp_path: Path) -> None:
    """And the rank's folder has the number that register_hook is given."""
    rank = 2 if "rank" in block(key).text else 0
    script = (
        f"import torch\nfrom ptdbg_ascend import *\nrank = 2\n{block(key).code}\n"
        "assert not hasattr(torch._C, '_clear_overflow_npu')\n"
        "set_dump_path('./dump')\nregister_hook(torch.nn.Linear(1, 1), overflow_check, "
        "rank=torch.npu.current_device())\ntorch.full((3,), 3e38) * 10\n"
        "set_overflow_check_switch('OFF')\n"
    )
    ended = run_script(script, tmp_path, has_npu=True)
    assert ended.code == 0 and "[overflow 1 times]: dump file is saved in" in ended.out, ended
    (pkl,) = (tmp_path / "dump").rglob("*.pkl")
    assert (pkl.parent.name, pkl.name) == (f"rank{rank}", "Tensor___mul___0_forward_1.pkl")
    assert [call.name for call in open_dump(pkl).parts[0].calls()] == ["Tensor.__mul__.0.forward"]
    assert len(list(tmp_path.glob("forward_info_*.json"))) == 1


def test_a_version_that_is_put_beside_ptdbg_does_no_harm_and_is_not_needed(tmp_path: Path) -> None:
    folder = tmp_path / "att/debug/accuracy_tools/ptdbg_ascend/src/python"
    common = copy_compat(folder, "ptdbg_ascend") / "ptdbg_ascend" / "common"
    script = "from ptdbg_ascend import *\nimport ptdbg_ascend\n"
    script += "print(ptdbg_ascend.__file__)\nseed_all()\n"
    ended = run_script(script, tmp_path, paths=[folder])
    assert (ended.code, ended.err) == (0, "") and str(folder) in ended.out
    (common / "version.py").write_text(block("002-1").code)
    script += "from ptdbg_ascend.common.version import __version__\nprint(__version__)\n"
    ended = run_script(script, tmp_path, paths=[folder])
    assert (ended.code, ended.err) == (0, "") and ended.out.endswith("3.4\n")


def test_the_path_of_the_pre_check_does_not_hide_ptdbg(tmp_path: Path) -> None:
    """With the variable and without it; in the repository a folder of that name lies there."""
    tools = copy_compat(tmp_path / "att/debug/accuracy_tools", "api_accuracy_checker")
    (tools / "ptdbg_ascend" / "src").mkdir(parents=True)
    use = "python -c 'from ptdbg_ascend import *; print(PrecisionDebugger.__name__, seed_all)'"
    lines = (
        block("001-1").code,
        block("002-4").code,
        use,
        block("002-5").code,
        block("002-4").code,
    )
    ended = run_shell("\n".join(lines), tmp_path, environment={"ATT_HOME": str(tmp_path / "att")})
    assert ended.code == 0, ended
    path, name, empty = ended.out.splitlines()
    assert path.endswith(f"{tools}/") and empty == ""
    assert name.startswith("PrecisionDebugger <function seed_all")
