"""What the seeds' questions and answers warn of does not occur, whichever tool's names are used."""

from __future__ import annotations

import csv
import functools
import json
import re
import tempfile
from pathlib import Path

import pytest
import torch
from script_runs import run_script
from seed_scripts import BEGIN, END, TOOLS
from torch.nn import functional

from msprobe.msprobe import main
from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.records import TensorValue
from tensorprobe.replay.rebuild import load_tensor
from tensorprobe.store import RankDump

# Every operator of seed 000's table: the code that uses it, and the name that it is recorded by.
OPERATORS = {
    "__add__": "x + x", "__and__": "x & x", "__bool__": "bool(one)", "__div__": "f / f",
    "__eq__": "x == x", "__ge__": "x >= x", "__gt__": "x > x", "__iadd__": "x += 1",
    "__iand__": "x &= 1", "__idiv__": "f /= 2", "__ifloordiv__": "x //= 2",
    "__ilshift__": "x <<= 1", "__imod__": "x %= 2", "__imul__": "x *= 2", "__ior__": "x |= 1",
    "__irshift__": "x >>= 1", "__isub__": "x -= 1", "__ixor__": "x ^= 1", "__lshift__": "x << 1",
    "__matmul__": "f @ f", "__mod__": "x % 2", "__mul__": "x * x",
    "__nonzero__": "one.__nonzero__()", "__or__": "x | x", "__radd__": "1 + x",
    "__rmul__": "2 * x", "__rshift__": "x >> 1", "__sub__": "x - 1", "__truediv__": "f / 2",
    "__xor__": "x ^ x",
}  # fmt: skip
# Python 3 has one division, and torch one question for the truth of a tensor.
SAME = {"__div__": "__truediv__", "__nonzero__": "__bool__"}

# What broke under tools that put functions of their own in the place of torch's.
FRAGILE = """
import torch
import torch.nn.functional as F
from torch.nn.functional import gelu

x = torch.randn(3, 4, requires_grad=True)
assert x[:, 1].shape == (3,) and x[0, :2].shape == (2,) and x[..., None].shape == (3, 4, 1)
assert x[x > 0].dim() == 1 and x[None].shape == (1, 3, 4)
for wrong, error in ((lambda: x[0, 0, 0], IndexError), (lambda: len(x[0, 0]), TypeError)):
    try:
        wrong()
    except error:
        pass
    else:
        raise SystemExit("an error of the user's own was lost")
if F.gelu is not gelu or F.gelu.__module__ == "somewhere":
    raise ValueError("activation_func must be F.gelu")
gelu(x).sum().backward()
for view in (x.t(), x.transpose(0, 1), torch.t(x), torch.transpose(x, 0, 1)):
    assert view.stride() == (1, 4) and view.data_ptr() == x.data_ptr()
    assert view.grad_fn.name() in ("TBackward0", "TransposeBackward0"), view.grad_fn
print("all as ever")
"""


def capture(code: str, **values: object) -> RankDump:
    """Capture what a piece of code does with some values."""
    path = tempfile.mkdtemp(prefix="seeds-")
    debugger = PrecisionDebugger(dump_path=path, task="tensor", level="L1")
    compiled = compile(code, "<user>", "exec")
    debugger.start()
    exec(compiled, {"torch": torch, "F": functional, **values})
    debugger.stop()
    debugger.step()
    debugger.close()
    return open_dump(path).part()


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_have_the_names_of_the_table(operator: str) -> None:
    values = {
        "x": torch.tensor([6, 4]),
        "f": torch.tensor([[6.0, 4.0], [2.0, 1.0]]),
        "one": torch.tensor([1.0]),
    }
    calls = [call.name for call in capture(OPERATORS[operator], **values)]
    assert calls == [f"Tensor.{SAME.get(operator, operator)}.0.forward"]


@pytest.mark.parametrize("tool", TOOLS)
def test_slicing_gelu_and_transposing_work_as_without_a_tool(tool: str, tmp_path: Path) -> None:
    ended = run_script(f"{BEGIN[tool]}{FRAGILE}{END[tool]}", tmp_path)
    assert "all as ever" in ended.out and "Traceback" not in ended.err, ended
    assert "AsStrided" not in ended.out + ended.err


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_a_weight_is_there_whatever_the_inputs_rank(bias: bool) -> None:
    layer = torch.nn.Linear(4, 3, bias=bias)
    given = torch.randn(2, 5, 4, requires_grad=True)
    part = capture("layer(given).sum().backward()", layer=layer, given=given)
    gradients = part.call("Functional.linear.0.backward").outputs or ()
    assert isinstance(gradients[1], TensorValue)
    assert torch.equal(load_tensor(part, gradients[1]), layer.weight.grad)
    weight = torch.randn(3, 4, requires_grad=True)
    part = capture("given.matmul(weight.t()).sum().backward()", weight=weight, given=given)
    gradients = part.call("Tensor.matmul.0.backward").outputs or ()
    assert isinstance(gradients[1], TensorValue)
    assert torch.equal(load_tensor(part, gradients[1]), weight.grad.t())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_data_have_the_type_that_dump_json_says(dtype: torch.dtype) -> None:
    given = torch.randn(8).to(dtype)
    part = capture("torch.relu(given)", given=given)
    raw = json.loads(part.path.read_text())["data"]["Torch.relu.0.forward"]["input_args"][0]
    file = torch.load(part.path.parent / "dump_tensor_data" / raw["data_name"], weights_only=True)
    assert raw["dtype"] == str(dtype) and file.dtype is dtype and torch.equal(file, given)


@functools.cache
def judged() -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]], object]:
    """Run run_ut over halves, a dropout and casts.

    Returns its results and its details, by name, and what it keeps of the compiler's switch.
    """
    given = torch.randn(32, 32)
    part = capture(
        "torch.relu(half) * 2\nF.linear(brain, brain)\nF.dropout(given, 0.25)\n"
        "given.type_as(half)\nhalf.to(torch.float32)",
        given=given,
        half=given.half(),
        brain=given.bfloat16(),
    )
    folder = Path(tempfile.mkdtemp(prefix="seeds-"))
    words = ["-f", "pytorch", "run_ut", "-api_info", str(part.path), "-o", str(folder), "-j"]
    assert main(words) == 0
    (told,) = folder.glob("accuracy_checking_run_*.json")
    was_compiled = json.loads(told.read_text())["jit_compile"]
    found = []
    for kind, name in (("result", "API name"), ("details", "API Name")):
        (file,) = folder.glob(f"accuracy_checking_{kind}_*.csv")
        with file.open(encoding="utf-8-sig", newline="") as text:
            found.append({row[name]: row for row in csv.DictReader(text)})
    return found[0], found[1], was_compiled


def test_run_ut_knows_bfloat16() -> None:
    results, details, _ = judged()
    assert results["Functional.linear.0"]["Forward Test Success"] == "pass"
    assert details["Functional.linear.0.forward.output.0"]["DEVICE Dtype"] == "torch.bfloat16"
    assert not any("ScalarType" in row["Message"] for row in results.values())


def test_the_compilers_switch_is_kept_with_the_results() -> None:
    """So that a run which is resumed can be told another one."""
    _, _, was_compiled = judged()
    assert was_compiled is True


def test_the_cpu_computes_halves_one_precision_up() -> None:
    _, details, _ = judged()
    row = details["Torch.relu.0.forward.output.0"]
    assert (row["DEVICE Dtype"], row["Bench Dtype"]) == ("torch.float16", "torch.float32")


def test_a_dropout_is_judged_by_its_share_of_zeros() -> None:
    _, details, _ = judged()
    row = details["Functional.dropout.0.forward.output.0"]
    assert row["Status"] == "pass"
    assert re.search(r"share of zeros: 0\.2\d* of 0\.25", row["Message"])


def test_casts_are_marked_as_of_limited_value() -> None:
    results, _, _ = judged()
    assert "limited value" in results["Tensor.type_as.0"]["Message"]


def test_a_dump_path_may_have_any_character(tmp_path: Path) -> None:
    folder = tmp_path / "abc++ 数据 (1)"
    folder.mkdir()
    script = f"{BEGIN['msprobe']}import torch\ntorch.relu(torch.ones(2))\n{END['msprobe']}"
    ended = run_script(script, folder)
    assert (ended.code, ended.err) == (0, ""), ended
    assert [call.name for call in open_dump(folder / "dump").part()][-1] == "Torch.relu.0.forward"


def test_following_a_dataloader_ends_the_run_as_announced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"enable_dataloader": true, "step": [0, 1]}')
    script = (
        "import torch\nfrom msprobe.pytorch import PrecisionDebugger\n"
        "debugger = PrecisionDebugger('config.json', dump_path='./dump')\n"
        "for batch in torch.utils.data.DataLoader(torch.ones(6, 4)):\n    torch.relu(batch)\n"
        "print('went on')\n"
    )
    ended = run_script(script, tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1] == "Exception: msprobe: exit after iteration 1"
    assert len(open_dump(tmp_path / "dump").parts) == 2


@pytest.mark.parametrize("task", ["statistics", "overflow_check"])
@pytest.mark.parametrize("level", ["L1", "L2"])
def test_no_library_of_an_npu_is_asked_for_anything(task: str, level: str, tmp_path: Path) -> None:
    """Neither torch_npu nor acl is imported; so none of their errors can come of a capture."""
    for name in ("torch_npu", "acl", "te", "hccl"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('error code: EI0006')\n")
    begin = BEGIN["msprobe"].replace("'L1'", repr(level)).replace("'tensor'", repr(task))
    run = "import torch\nx = torch.ones(2, requires_grad=True)\nx.exp().sum().backward()\n"
    ended = run_script(f"{begin}{run}{END['msprobe']}", tmp_path)
    assert ended.code == 0 and "EI0006" not in ended.err and "NameError" not in ended.err, ended
