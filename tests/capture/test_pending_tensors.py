"""A tensor's numbers are taken once for all who show its memory, and again when it changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.pending_tensors import Numbers, PendingTensor, PendingTensorTable
from tensorprobe.summary.checksum import Checked
from tensorprobe.summary.statistics import Measured


def numbers() -> Numbers:
    return Measured((1.0, 1.0, 1.0, 1.0)), Checked(1)


def keep(table: PendingTensorTable, tensor: torch.Tensor) -> PendingTensor:
    draft = PendingTensor(tensor, *numbers())
    table.keep(tensor, draft)
    return draft


def test_the_same_tensor_is_found_until_somebody_writes_into_it() -> None:
    table = PendingTensorTable(is_ordered=False)
    tensor = torch.ones(3)
    draft = keep(table, tensor)
    assert table.find(tensor) is draft
    tensor.add_(1)
    assert table.find(tensor) is None


def test_an_interrupt_while_a_tensor_is_looked_for_is_not_lost() -> None:
    class Interrupted(torch.Tensor):
        """Asked through `__torch_function__`, as every tensor is while a mode is on."""

        asked = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            cls.asked += 1
            if cls.asked == 1:
                raise KeyboardInterrupt
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(3).as_subclass(Interrupted)
    table = PendingTensorTable(is_ordered=False)
    with torch._C.DisableTorchFunctionSubclass():
        keep(table, tensor)
    with pytest.raises(KeyboardInterrupt):
        table.find(tensor)


def test_another_tensor_at_the_same_address_is_another_tensor() -> None:
    table = PendingTensorTable(is_ordered=False)
    tensor = torch.ones(1000)
    keep(table, tensor)
    address, alias = tensor.data_ptr(), tensor.data
    del tensor
    assert alias.data_ptr() == address
    assert table.find(alias) is None
    assert table.find_numbers(alias.view(10, 100)) is None


VIEWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool, bool]] = {
    # By name: the view, and whether its numbers are those of the whole, without and with order.
    "reshaped": (lambda t: t.view(6, 4), True, True),
    "transposed": (lambda t: t.transpose(0, 1), True, False),
    "flat": (lambda t: t.flatten(), True, True),
    "a part": (lambda t: t[1:], False, False),
    "another type": (lambda t: t.view(torch.int32), False, False),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_the_memory_of_its_base(name: str) -> None:
    make, same_numbers, same_bytes = VIEWS[name]
    base = torch.arange(24.0).reshape(2, 3, 4).clone()
    for is_ordered, expected in ((False, same_numbers), (True, same_bytes)):
        table = PendingTensorTable(is_ordered=is_ordered)
        draft = keep(table, base)
        found = table.find_numbers(make(base))
        assert found == ((draft.measured, draft.checked) if expected else None)


def test_views_of_one_part_share_their_numbers_also_if_nobody_has_seen_the_base() -> None:
    table = PendingTensorTable(is_ordered=False)
    base = torch.arange(24.0).reshape(4, 6)
    first, second = base.split(3, dim=1)
    draft = keep(table, first)
    assert table.find_numbers(first.transpose(0, 1)) == (draft.measured, draft.checked)
    assert table.find_numbers(base[:, :3].view(2, 2, 3)) == (draft.measured, draft.checked)
    assert table.find_numbers(second) is None
    base.zero_()
    assert table.find_numbers(first.transpose(0, 1)) is None


def test_a_negated_view_is_not_what_is_in_memory() -> None:
    for is_ordered in (False, True):
        table = PendingTensorTable(is_ordered=is_ordered)
        base = torch.ones(4, dtype=torch.complex64)
        keep(table, base)
        assert table.find_numbers(base.conj()) is None
        part = base.imag
        keep(table, part)
        negated = base.conj().imag
        assert negated.is_neg() and negated.data_ptr() == part.data_ptr()
        assert table.find_numbers(negated) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_negated_view_is_recorded_with_numbers_of_its_own(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    base = torch.tensor([1, 2, 5], dtype=dtype)
    with PrecisionDebugger(dump_path=tmp_path):
        base.clone()
        torch._neg_view(base).clone()
    calls = json.loads((tmp_path / "step0" / "rank" / "dump.json").read_text())["data"]
    found = [calls[f"Tensor.clone.{number}.forward"]["input_args"][0] for number in (0, 1)]
    assert [value["Max"] for value in found] == [5, -1]
    assert [value["Min"] for value in found] == [1, -5]


def test_an_inference_tensor_has_no_version_and_is_not_remembered() -> None:
    table = PendingTensorTable(is_ordered=False)
    with torch.inference_mode():
        tensor = torch.ones(3)
        keep(table, tensor)
        assert table.find(tensor) is None


def test_drafts_of_freed_tensors_do_not_pile_up() -> None:
    table = PendingTensorTable(is_ordered=False)
    for _ in range(20_000):
        keep(table, torch.ones(1).view(1))
    assert len(table.known) < 5000 and len(table._owners) < 5000
