"""Noise that statistics do not show: of 16 bits before, and of gates that turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe import DumpWriter
from tensorprobe.blame import blame
from tensorprobe.records import CallRecord, DumpInfo, TensorValue

BF16, F32 = "torch.bfloat16", "torch.float32"
Call = tuple[str, TensorValue, TensorValue]


def tensor(size: float, dtype: str = F32, *, moved: float = 0.0) -> TensorValue:
    """Make a tensor whose largest element moved, and nothing else."""
    return TensorValue(
        dtype, (128, 128), size * (1 + moved), -size, 0.1 * size, 40 * size, requires_grad=True
    )


def write(folder: Path, calls: list[Call]) -> Path:
    with DumpWriter(folder, DumpInfo(level="L1")) as writer:
        for name, given, result in calls:
            writer.write(CallRecord(name, inputs=(given,), kwargs={}, outputs=(result,)))
    return folder


@pytest.mark.parametrize(("dtype", "culprit"), [(BF16, None), (F32, "Functional.silu.0.forward")])
def test_what_was_of_16_bits_brings_their_noise_along(
    tmp_path: Path, dtype: str, culprit: str | None
) -> None:
    def run(first: float, last: float) -> list[Call]:
        early, late = tensor(0.5, dtype, moved=first), tensor(2.0, moved=last)
        return [
            ("Functional.gelu.0.forward", tensor(1.0, dtype), early),
            ("Functional.gelu.1.forward", early, tensor(0.25, dtype)),
            ("Tensor.float.0.forward", tensor(0.25, dtype), tensor(3.0)),
            ("Functional.silu.0.forward", tensor(3.0), late),
        ]

    noise = 2.0**-9 if dtype == BF16 else 2.0**-24
    candidate = write(tmp_path / "c", run(noise, 2.0**-9))
    assert blame(candidate, write(tmp_path / "r", run(0.0, 0.0))).culprit == culprit


@pytest.mark.parametrize(
    ("gate", "culprit"),
    [("Functional.relu", None), ("Functional.silu", "Functional.softmax.0.backward")],
)
def test_gates_that_turn_are_noise_of_the_gradients_behind_them(
    tmp_path: Path, gate: str, culprit: str | None
) -> None:
    def run(first: float, last: float) -> list[Call]:
        return [
            ("Functional.softmax.0.forward", tensor(0.9), tensor(1.0, moved=first)),
            (f"{gate}.0.forward", tensor(1.0, moved=first), tensor(0.8, moved=first)),
            (f"{gate}.0.backward", tensor(0.4), tensor(0.3)),
            ("Functional.softmax.0.backward", tensor(0.3), tensor(0.2, moved=last)),
        ]

    # Noise of 2e-6 may turn one of so many gates, and that moves a gradient by 1e-3.
    candidate = write(tmp_path / "c", run(2e-6, 2e-3))
    assert blame(candidate, write(tmp_path / "r", run(0.0, 0.0))).culprit == culprit
