"""Statistics of calls that are unlike those of their siblings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe import DumpWriter
from tensorprobe.blame import blame
from tensorprobe.records import CallRecord, DumpInfo, TensorValue

BF16, F32 = "torch.bfloat16", "torch.float32"


def tensor(largest: float, norm: float, dtype: str = BF16, rows: int = 8) -> TensorValue:
    return TensorValue(dtype, (rows, 24), largest, -0.5, 0.25, norm, requires_grad=False)


def write(folder: Path, results: list[TensorValue], operation: str = "Functional.linear") -> Path:
    """Write a chain of calls of one operation, each of which is given what came before."""
    with DumpWriter(folder, DumpInfo(level="L1")) as writer:
        given = tensor(1.0, 4.0, results[0].dtype)
        for index, result in enumerate(results):
            name = f"{operation}.{index}.forward"
            writer.write(CallRecord(name, inputs=(given,), kwargs={}, outputs=(result,)))
            given = result
    return folder


def chain(count: int, dtype: str = BF16) -> list[TensorValue]:
    return [tensor(1.0 + index / 4, 4.0 + index, dtype) for index in range(count)]


def test_the_first_of_many_siblings_to_differ_is_at_fault(tmp_path: Path) -> None:
    reference, candidate = chain(9), chain(9)
    # One unit in the last place of bfloat16: no theory of rounding would mind.
    candidate[6] = tensor(2.5 + 2.0**-6, 10.0625)
    answer = blame(write(tmp_path / "c", candidate), write(tmp_path / "r", reference))
    assert answer.culprit == "Functional.linear.6.forward"


def test_one_element_on_the_other_side_of_a_rounding_is_no_fault(tmp_path: Path) -> None:
    reference, candidate = chain(9), chain(9)
    candidate[6] = tensor(2.5 + 2.0**-6, 10.0)
    answer = blame(write(tmp_path / "c", candidate), write(tmp_path / "r", reference))
    assert answer.culprit is None


def test_without_siblings_a_rounding_is_no_fault(tmp_path: Path) -> None:
    reference, candidate = chain(9), chain(9)
    candidate[2] = tensor(1.5 + 2.0**-7, 6.0)
    answer = blame(write(tmp_path / "c", candidate), write(tmp_path / "r", reference))
    assert answer.culprit is None


def test_what_differs_before_is_noise_and_ends_the_silence(tmp_path: Path) -> None:
    reference, candidate = chain(9), chain(9)
    candidate[0] = tensor(1.0 + 2.0**-7, 4.0)
    candidate[6] = tensor(2.5 + 2.0**-6, 10.0)
    answer = blame(write(tmp_path / "c", candidate), write(tmp_path / "r", reference))
    assert answer.culprit is None


@pytest.mark.parametrize(("rows", "culprit"), [(8, "Functional.linear.6.forward"), (16, None)])
def test_kernels_of_32_bits_are_siblings_by_their_shapes(
    tmp_path: Path, rows: int, culprit: str | None
) -> None:
    reference, candidate = chain(7, F32), chain(7, F32)
    reference[6] = tensor(2.5, 10.0, F32, rows)
    candidate[6] = tensor(2.5 + 2.0**-20, 10.0, F32, rows)
    answer = blame(write(tmp_path / "c", candidate), write(tmp_path / "r", reference))
    assert answer.culprit == culprit


@pytest.mark.parametrize(
    ("factor", "culprit"), [(1.0625, "Functional.softmax.6.forward"), (1.0125, None)]
)
def test_a_norm_that_moves_by_more_than_those_of_its_siblings_is_scaled(
    tmp_path: Path, factor: float, culprit: str | None
) -> None:
    reference, candidate = chain(8), chain(8)
    candidate[0] = tensor(1.0 + 2.0**-7, 4.0)
    candidate[6] = tensor(2.5 * factor, 10.0 * factor)
    folders = [
        write(tmp_path / side, results, "Functional.softmax")
        for side, results in (("c", candidate), ("r", reference))
    ]
    assert blame(*folders).culprit == culprit
