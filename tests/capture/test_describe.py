"""Whatever a call is given is described, in a time that people accept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from debugged import BOTH_WAYS
from torch import nn

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.capture.describe import describe, tensors_in
from tensorprobe.records import DictValue, ListValue, TensorValue, UnknownValue, Value


@dataclass
class Node:
    value: torch.Tensor
    others: list[Node] = field(default_factory=list)


def linked(count: int) -> Node:
    nodes = [Node(torch.full((1,), float(number))) for number in range(count)]
    for node in nodes:
        node.others = nodes
    return nodes[0]


class Reader(nn.Module):
    def forward(self, node: Node) -> torch.Tensor:
        return node.value * 2


def test_objects_that_hold_each_other_cost_no_time(tmp_path: Path) -> None:
    node = linked(60)
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L0")
    debugger.start()
    result = Reader()(node)
    debugger.stop()
    debugger.step()
    assert torch.equal(result, torch.zeros(1))
    assert not list(tmp_path.rglob("dump_error_info.log"))
    (given,) = open_dump(tmp_path).part().call("Module.Reader.forward.0").inputs or ()
    assert isinstance(given, DictValue)
    # Sixty objects that each hold all sixty: the ways through them are more than atoms.
    assert count_values(given) < 20_000


def count_values(value: Value) -> int:
    """Count what a record says about one argument, all that it holds included."""
    if isinstance(value, DictValue):
        return 1 + sum(count_values(inner) for _, inner in value.items)
    if isinstance(value, ListValue):
        return 1 + sum(map(count_values, value.items))
    return 1


class Broken(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise OSError("the file is closed")

    def __len__(self) -> int:
        return 1


@dataclass(slots=True)
class HalfMade:
    first: torch.Tensor
    second: torch.Tensor = field(init=False)


@pytest.mark.parametrize(
    ("strange", "reason"),
    [(Broken(), "OSError: the file is closed"), (HalfMade(torch.ones(1)), "AttributeError: ")],
)
def test_what_cannot_be_looked_into_costs_no_record(
    tmp_path: Path, strange: Any, reason: str
) -> None:
    class Taker(nn.Module):
        def forward(self, x: torch.Tensor, other: Any, *, option: Any) -> torch.Tensor:
            return x * 2

    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start()
    Taker()(torch.ones(2, requires_grad=True), strange, option=strange).sum().backward()
    debugger.stop()
    debugger.step()
    assert not list(tmp_path.rglob("dump_error_info.log"))
    part = open_dump(tmp_path).part()
    record = part.call("Module.Taker.forward.0")
    given, option = (record.inputs or ())[1], (record.kwargs or {})["option"]
    assert isinstance(given, UnknownValue) and given == option
    assert given.type_name == type(strange).__name__
    assert given.text.startswith(f"it cannot be looked into ({reason}")
    assert "Module.Taker.backward.0" in part


def test_a_list_in_itself_is_described_once_below_some_depth() -> None:
    cycle: list[Any] = [torch.ones(1)]
    cycle.append(cycle)
    tensors: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor, path: tuple[str, ...]) -> str:
        tensors.append(tensor)
        return ".".join(path)

    found = describe(cycle, keep, ("call.input", "0"))
    depth = 0
    while isinstance(found, ListValue):
        assert len(found.items) == 2
        found = found.items[1]
        depth += 1
    assert found == UnknownValue("list", "described before")
    # What is described and what has gradients are the same tensors.
    assert len(tensors_in((cycle,))) == len(tensors) == depth


def test_what_stands_in_several_places_is_described_in_each() -> None:
    shared = [torch.ones(1), torch.zeros(1)]
    value = {"a": shared, "b": [shared, (shared,)]}
    found = describe(value, lambda tensor, path: ".".join(path))
    assert found == DictValue(
        (
            ("a", ListValue(("a.0", "a.1"))),
            (
                "b",
                ListValue(
                    (
                        ListValue(("b.0.0", "b.0.1")),
                        ListValue((ListValue(("b.1.0.0", "b.1.0.1")),), is_tuple=True),
                    )
                ),
            ),
        )
    )
    assert len(tensors_in(value)) == 6


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


@BOTH_WAYS
def test_results_of_torch_with_names_are_several_values_and_a_users_are_one(
    tmp_path: Path, listed: tuple[str, ...]
) -> None:
    class Own:
        @staticmethod
        def span(x: torch.Tensor) -> Pair:
            return Pair(x.min(), x.max())

    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": "L1", "statistics": {"list": listed}}))
    with PrecisionDebugger(config, dump_path=tmp_path / "dump"):
        PrecisionDebugger.register_custom_api(Own, "span")
        x = torch.ones(4, 4, requires_grad=True)
        torch.max(x, dim=1).values.sum().backward()
        x.topk(2)
        torch.linalg.qr(x)
        Own.span(x)
        PrecisionDebugger.restore_custom_api(Own, "span")
    part = open_dump(tmp_path / "dump").part()
    for name in ("Torch.max.0", "Tensor.topk.0", "Torch.linalg.qr.0"):
        outputs = part.call(f"{name}.forward").outputs or ()
        assert len(outputs) == 2 and all(isinstance(value, TensorValue) for value in outputs)
    (pair,) = part.call("Own.span.0.forward").outputs or ()
    assert isinstance(pair, DictValue) and [key for key, _ in pair.items] == ["low", "high"]
    of_values, of_indices = part.call("Torch.max.0.backward").inputs or ()
    assert isinstance(of_values, TensorValue) and of_indices is None
