"""A user's list of functions, and functions of packages that are not torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from debugged import messages, names
from make_api_list import text_of_list
from torch.nn import functional

from conftest import REPOSITORY
from tensorprobe import PrecisionDebugger
from tensorprobe.capture.api_list import OWN_LIST, ApiList
from tensorprobe.capture.apis import as_in_dump
from tensorprobe.errors import ConfigError

pytestmark = pytest.mark.same_without_c


ONES = torch.ones(2, 2)


def run() -> torch.Tensor:
    """What the FAQ of the older tools complains of, and more."""
    x = functional.gelu(ONES)[0]
    x = x.reshape(1, 2).transpose(0, 1).t()
    return torch.relu(x + x) * 2


def called(folder: Path, edit: Any = None, **fields: Any) -> list[str]:
    """Capture `run` with an edited copy of our list, and return what was called."""
    text = OWN_LIST.read_text()
    file = folder / "support_wrap_ops.yaml"
    file.write_text(text if edit is None else edit(text))
    config = folder / "config.json"
    config.write_text(json.dumps({"api_list": str(file), **fields}))
    debugger = PrecisionDebugger(config, dump_path=folder / "dump")
    debugger.start()
    run()
    debugger.step()
    return [name.split(".0.")[0] for name in names(folder / "dump")]


def without(*lines: str) -> Any:
    def edit(text: str) -> str:
        for line in lines:
            assert f"  - {line}\n" in text
            text = text.replace(f"  - {line}\n", f"#  - {line}\n")
        return text

    return edit


WHOLE = [
    *("Functional.gelu", "Tensor.__getitem__", "Tensor.reshape", "Tensor.transpose", "Tensor.t"),
    *("Tensor.__add__", "Torch.relu", "Tensor.__mul__"),
]


def test_a_list_that_nobody_edited_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert called(tmp_path) == WHOLE
    assert not messages(caplog)


@pytest.mark.parametrize(
    "lines", [["__getitem__"], ["gelu"], ["t", "transpose"], ["__add__"], ["relu", "__mul__"]]
)
def test_a_line_that_is_commented_out_leaves_its_function_out(
    lines: list[str], tmp_path: Path
) -> None:
    left = [name for name in WHOLE if name.partition(".")[2] not in lines]
    assert called(tmp_path, without(*lines)) == left
    # And nothing is wrapped for it.
    assert "tensorprobe" not in (getattr(functional.gelu, "__module__", "") or "")


def test_a_function_that_is_left_out_by_itself_can_be_added(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(OWN_LIST.read_text().replace("tensor:\n", "tensor:\n  - item\n"))
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", api_list=file)
    debugger.start()
    ONES[0, 0].item()
    debugger.step()
    assert names(tmp_path / "dump") == ["Tensor.__getitem__.0.forward", "Tensor.item.0.forward"]


def test_of_a_short_list_only_what_it_names_is_captured(tmp_path: Path) -> None:
    assert called(tmp_path, lambda _: "functional: [gelu]\ntensor:\n- __mul__\n") == [
        "Functional.gelu",
        "Tensor.__mul__",
    ]


def test_what_even_our_list_does_not_know_is_captured(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("functional: [gelu]\n")
    listed = ApiList(file, as_in_dump)
    assert listed.leaves_out("Torch.relu") and listed.leaves_out("Distributed.all_reduce")
    assert not listed.leaves_out("Torch.of_a_newer_version")
    assert not listed.leaves_out("Functional.gelu")
    assert not listed.leaves_out("NPU.npu_rms_norm") and not listed.leaves_out("MyOps.fused")
    file.write_text("torch_npu: [npu_rms_norm]\naten: [add]\n")
    listed = ApiList(file, as_in_dump)
    assert listed.leaves_out("NPU.npu_swiglu") and not listed.leaves_out("NPU.npu_rms_norm")
    assert listed.leaves_out("Aten.mul") and not listed.leaves_out("Aten.add")


def test_skip_apis_and_add_apis_win_over_a_list(tmp_path: Path) -> None:
    edit = without("relu", "__mul__")
    found = called(tmp_path, edit, add_apis=["torch.relu"], skip_apis=["Tensor.reshape"])
    assert found == [n for n in WHOLE if n not in ("Tensor.reshape", "Tensor.__mul__")]


def test_functions_that_torch_shares_belong_to_the_section_functional(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("torch: [conv2d, max_pool2d]\n")
    assert ApiList(file, as_in_dump).leaves_out("Functional.conv2d")
    file.write_text("functional: [conv2d, max_pool2d_with_indices]\n")
    assert not ApiList(file, as_in_dump).leaves_out("Functional.conv2d")
    assert not ApiList(file, as_in_dump).leaves_out("Functional.max_pool2d")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"", "list.yaml: this is no list of functions; wanted sections such as functional"),
        (b"- gelu\n", "list.yaml: this is no list of functions"),
        (
            b"functionl:\n- gelu\n",
            "the section 'functionl' is not known; did you mean 'functional'",
        ),
        (b"zzzz:\n- gelu\n", "the section 'zzzz' is not known; known are functional, tensor"),
        (b"torch: relu\n", "torch holds 'relu', wanted a list of names"),
        (b"torch:\n- 3\n", "torch holds '3', wanted names such as '- gelu'"),
        (b"torch:\n- os.system('true')\n", "torch holds \"os.system('true')\", wanted names"),
        (b"torch:\n- a/b\n", "torch holds 'a/b', wanted names such as"),
        (b"torch:\n  - relu\n - gelu\n", "list.yaml: line 3, column 2: this is not YAML"),
        (
            b"torch: !!python/object/apply:os.system [true]\n",
            "is not read here; write a plain value",
        ),
        (b"torch:\n- \xff\n", "list.yaml: line 2: the text is not UTF-8"),
        (None, "list.yaml: the file cannot be read: No such file or directory; check the path"),
    ],
)
def test_an_odd_or_damaged_list_is_one_line_at_the_beginning(
    text: bytes | None, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "list.yaml"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigError) as err:
        PrecisionDebugger(dump_path=tmp_path / "dump", api_list=file)
    said = str(err.value)
    assert complaint in said and "\n" not in said and said.startswith(str(file))


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="made with torch 2.13")
@pytest.mark.filterwarnings("ignore")
def test_our_list_is_that_of_all_functions() -> None:
    assert OWN_LIST.read_text() == text_of_list()


def test_the_packages_of_the_older_names_have_the_same_list() -> None:
    lists = list((REPOSITORY / "compat/src").rglob("support_wrap_ops.yaml"))
    assert len(lists) == 3 and all(path.read_bytes() == OWN_LIST.read_bytes() for path in lists)


# --- packages that need not be here ----------------------------------------------------------

STAND_IN = """
import torch

def npu_scaled_masked_softmax(x, mask, scale, fixed_triu_mask=False):
    return torch.softmax(x.masked_fill(mask, -1e4) * scale, -1)

def npu_swiglu(x):
    return torch.sigmoid(x) * x
"""


@pytest.fixture
def torch_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module named torch_npu, with fused functions that torch does not tell of."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/torch_npu.py").write_text(STAND_IN)
    ops = tmp_path / "packages/mindspeed/ops"
    ops.mkdir(parents=True)
    (ops.parent / "__init__.py").write_text("")
    (ops / "__init__.py").write_text("")
    (ops / "gmm.py").write_text("def npu_gmm(x):\n    return x @ x\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    import torch_npu

    yield torch_npu
    for name in [name for name in sys.modules if name.startswith(("torch_npu", "mindspeed"))]:
        del sys.modules[name]


def softmax_calls(torch_npu: Any, folder: Path) -> list[str]:
    x = torch.ones(2, 2, requires_grad=True)
    debugger = PrecisionDebugger.start()
    torch_npu.npu_scaled_masked_softmax(x, ONES > 2, 0.5, False).sum().backward()
    torch_npu.npu_swiglu(ONES)
    PrecisionDebugger.step()
    assert debugger is None
    return names(folder)


@pytest.mark.parametrize(
    "name", ["torch_npu.npu_scaled_masked_softmax", "NPU.npu_scaled_masked_softmax"]
)
def test_an_added_function_of_torch_npu_is_called_NPU(
    name: str, torch_npu: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"add_apis": [name], "dump_path": str(tmp_path / "dump")}))
    original = torch_npu.npu_scaled_masked_softmax
    debugger = PrecisionDebugger(config)
    found = softmax_calls(torch_npu, tmp_path / "dump")
    assert "NPU.npu_scaled_masked_softmax.0.forward" in found
    assert "NPU.npu_scaled_masked_softmax.0.backward" in found
    assert not any("softmax" in name and not name.startswith("NPU.") for name in found)
    debugger.close()
    assert torch_npu.npu_scaled_masked_softmax is original
    assert not messages(caplog)


def test_an_operator_that_is_listed_under_torch_npu_is_recorded(
    torch_npu: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "support_wrap_ops.yaml"
    edited = OWN_LIST.read_text().replace("#  - npu_scaled", "  - npu_scaled")
    # A list has the functions of all versions, and of packages that are not here.
    file.write_text(f"{edited}  - npu_of_another_version\nmindspeed:\n- no_such.npu_x\n")
    PrecisionDebugger(dump_path=tmp_path / "dump", api_list=file)
    found = softmax_calls(torch_npu, tmp_path / "dump")
    assert "NPU.npu_scaled_masked_softmax.0.forward" in found
    assert not any("npu_swiglu" in name for name in found)
    assert not messages(caplog)


def test_operators_of_mindspeed_are_called_MindSpeed(torch_npu: Any, tmp_path: Path) -> None:
    file = tmp_path / "support_wrap_ops.yaml"
    file.write_text("mindspeed:\n- gmm.npu_gmm\n")
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", api_list=file)
    from mindspeed.ops import gmm

    debugger.start()
    gmm.npu_gmm(ONES)
    debugger.step()
    assert names(tmp_path / "dump") == ["MindSpeed.npu_gmm.0.forward"]


def test_without_torch_npu_a_name_of_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"add_apis": ["torch_npu.npu_rms_norm"]}))
    PrecisionDebugger(config, dump_path=tmp_path)
    assert messages(caplog) == [
        "add_apis holds 'torch_npu.npu_rms_norm', which cannot be recorded: No module named "
        "'torch_npu'"
    ]
