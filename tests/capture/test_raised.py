"""A call that raises is recorded with what it was given, and without an output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.store.dump import RankDump


def capture(folder: Path, run: Callable[[], Any], level: str = "L1", **block: Any) -> RankDump:
    config = folder.with_suffix(".json")
    config.write_text(json.dumps({"level": level, "task": "statistics", "statistics": block}))
    debugger = PrecisionDebugger(config, dump_path=folder)
    debugger.start()
    run()
    debugger.step()
    debugger.close()
    (dump,) = open_dump(folder).parts
    assert not dump.gaps
    return dump


def shapes_of(call: CallRecord) -> list[tuple[int, ...]]:
    return [value.shape for value in call.inputs or () if isinstance(value, TensorValue)]


def multiply_wrongly() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    torch.mm(torch.ones(2, 3), torch.ones(3, 4))


# A list goes through Python, also one that names every call.
@pytest.mark.parametrize("block", [{}, {"list": ["name-regex(.*)"]}], ids=["compiled", "python"])
def test_a_call_that_raises_has_its_inputs_its_place_and_no_output(
    block: dict[str, Any], tmp_path: Path
) -> None:
    dump = capture(tmp_path / "dump", multiply_wrongly, **block)
    failed, fine = dump.call("Torch.mm.0.forward"), dump.call("Torch.mm.1.forward")
    assert shapes_of(failed) == [(2, 3), (2, 3)] and shapes_of(fine) == [(2, 3), (3, 4)]
    assert failed.outputs is None and fine.outputs is not None
    assert failed.is_recompute is False
    assert dump.stack(failed.name)[0].function == "multiply_wrongly"


def test_a_call_that_raises_is_subject_to_the_filters(tmp_path: Path) -> None:
    listed = capture(tmp_path / "list", multiply_wrongly, list=["mm.1"])
    assert list(listed.names) == ["Torch.mm.1.forward"]
    outputs = capture(tmp_path / "mode", multiply_wrongly, data_mode=["forward", "output"])
    assert list(outputs.names) == ["Torch.ones.0.forward", "Torch.ones.1.forward",
                                   "Torch.ones.2.forward", "Torch.ones.3.forward",
                                   "Torch.mm.1.forward"]  # fmt: skip


def test_an_operator_that_raises_has_its_inputs_and_no_output(tmp_path: Path) -> None:
    dump = capture(tmp_path / "dump", multiply_wrongly, "L2")
    calls = [dump.call(f"Aten.mm.{number}.forward") for number in range(2)]
    assert shapes_of(calls[0]) == [(2, 3), (2, 3)]
    assert [call.outputs is None for call in calls] == [True, False]
    assert dump.parent("Aten.mm.0.forward") == "Torch.mm.0.forward"


def test_a_function_of_the_users_own_that_raises_has_its_inputs_and_no_output(
    tmp_path: Path,
) -> None:
    def fail(x: Tensor) -> None:
        raise ValueError("of the user")

    home = SimpleNamespace(__name__="home", fail=fail)

    def run() -> None:
        PrecisionDebugger.register_custom_api(home, "fail", "Own")
        with pytest.raises(ValueError, match="of the user"):
            home.fail(torch.ones(2, 3))

    call = capture(tmp_path / "dump", run).call("Own.fail.0.forward")
    assert shapes_of(call) == [(2, 3)] and call.outputs is None


class Twice(nn.Module):
    """A block that is recomputed, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Any:
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=False)
        return x


def test_the_call_that_ends_a_recomputation_has_no_output(tmp_path: Path) -> None:
    model = Twice()
    x = torch.randn(2, 4, requires_grad=True)
    dump = capture(tmp_path / "dump", lambda: model(x).sum().backward(), "mix")
    again = [call for call in map(dump.call, dump.names) if call.is_recompute]
    # The last linear of each block is begun and not ended; the modules around it return nothing.
    assert [
        (call.name, call.outputs if call.outputs in (None, (None,)) else "some") for call in again
    ] == [
        ("Functional.linear.4.forward", "some"),
        ("Module.block.0.Linear.forward.2", "some"),
        ("Functional.gelu.2.forward", "some"),
        ("Module.block.1.GELU.forward.2", "some"),
        ("Functional.linear.5.forward", None),
        ("Module.block.2.Linear.forward.2", (None,)),
        ("Module.block.Sequential.forward.2", (None,)),
        ("Functional.linear.6.forward", "some"),
        ("Module.block.0.Linear.forward.3", "some"),
        ("Functional.gelu.3.forward", "some"),
        ("Module.block.1.GELU.forward.3", "some"),
        ("Functional.linear.7.forward", None),
        ("Module.block.2.Linear.forward.3", (None,)),
        ("Module.block.Sequential.forward.3", (None,)),
    ]
    assert shapes_of(dump.call("Functional.linear.5.forward")) == [(2, 4), (4, 4), (4,)]
    assert dump.parent("Functional.linear.5.forward") == "Module.block.2.Linear.forward.2"


def test_no_call_of_a_recomputed_function_is_missing(tmp_path: Path) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def run() -> None:
        hidden: Any = checkpoint(
            lambda a: functional.linear(a, w).relu(), x * 1, use_reentrant=False
        )
        hidden.sum().backward()

    names = list(capture(tmp_path / "dump", run).names)
    assert [name for name in names if "relu" in name] == [
        "Tensor.relu.0.forward",
        "Tensor.relu.1.forward",
        "Tensor.relu.0.backward",
    ]
