"""What the user leaves out is left out, under the name that it has in a dump."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from debugged import messages, names

from tensorprobe.capture import PrecisionDebugger


def skip(folder: Path, skipped: list[str], listed: tuple[str, ...] = ()) -> list[str]:
    """Return the names that are recorded of a few calls where some are left out."""
    config = folder / "config.json"
    config.write_text(json.dumps({"skip_apis": skipped, "statistics": {"list": listed}}))
    x = torch.ones(3)
    with PrecisionDebugger(config, dump_path=folder / "dump"):
        _ = (x + x, x.add(x), 2 + x, 3 * x, x * 3, F.gelu(x), torch.tanh(x))
        # Known by now.
        _ = (x + x, x.add(x))
    return [name.removesuffix(".forward") for name in names(folder / "dump")]


@pytest.mark.parametrize("listed", [(), ("name-regex(.*)",)])
def test_an_operator_is_left_out_by_its_own_name(tmp_path: Path, listed: tuple[str, ...]) -> None:
    found = skip(tmp_path, ["Tensor.__add__", "Tensor.__rmul__"], listed)
    assert found == [
        *("Tensor.add.0", "Tensor.__radd__.0", "Tensor.__mul__.0"),
        *("Functional.gelu.0", "Torch.tanh.0", "Tensor.add.1"),
    ]


@pytest.mark.parametrize("listed", [(), ("name-regex(.*)",)])
def test_a_method_is_left_out_without_its_operators(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    found = skip(tmp_path, ["Tensor.add"], listed)
    assert found[:2] == ["Tensor.__add__.0", "Tensor.__radd__.0"]
    assert found[-1] == "Tensor.__add__.1"
    assert not any(name.startswith("Tensor.add.") for name in found)


def test_names_as_python_knows_them_leave_out_the_same(tmp_path: Path) -> None:
    found = skip(tmp_path, ["torch.nn.functional.gelu", "torch.tanh", "torch.Tensor.__mul__"])
    assert not {"Functional.gelu.0", "Torch.tanh.0", "Tensor.__mul__.0"} & set(found)
    assert "Tensor.__rmul__.0" in found


def test_a_function_of_two_homes_is_left_out_by_either_name(tmp_path: Path) -> None:
    image = torch.ones(1, 1, 4, 4)
    for number, name in enumerate(("Torch.conv2d", "torch.conv2d", "Functional.conv2d")):
        config = tmp_path / f"{number}.json"
        config.write_text(json.dumps({"skip_apis": [name, "Tensor.__itruediv__"]}))
        with PrecisionDebugger(config, dump_path=tmp_path / str(number)):
            y = F.conv2d(image, image)
            y /= 2
            F.gelu(y)
        assert names(tmp_path / str(number)) == ["Functional.gelu.0.forward"]


def test_functions_of_torch_keep_their_names_where_they_are_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "config.json"
    added = ["torch.nn.functional.gelu", "torch.Tensor.item", "torch.numel"]
    config.write_text(json.dumps({"add_apis": added}))
    x = torch.ones(3)
    with PrecisionDebugger(config, dump_path=tmp_path / "dump"):
        _ = (F.gelu(x), x.sum().item(), torch.numel(x))
    assert names(tmp_path / "dump") == [
        *("Functional.gelu.0.forward", "Tensor.sum.0.forward", "Tensor.item.0.forward"),
        "Torch.numel.0.forward",
    ]
    assert messages(caplog) == []


def test_a_name_that_nothing_has_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    skip(
        tmp_path,
        [
            "Tensor.__getitm__",
            "Functional.gelu",
            "VF.lstm",
            "torch.linalg.norm",
            "Tensor.__imatmul__",
        ],
    )
    assert messages(caplog) == [
        "skip_apis holds 'Tensor.__getitm__', which leaves nothing out: torch has no such API"
    ]
