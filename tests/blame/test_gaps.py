"""A gradient that arrives wrong, where nothing before differs, names the nearest that sent one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe import DumpWriter, blame
from tensorprobe.records import CallRecord, DumpInfo, TensorValue


def sized(norm: float) -> TensorValue:
    return TensorValue("torch.float32", (8, 8), norm / 2, -norm / 2, 0.01, norm)


def write(folder: Path, arriving: float, *, last: str = "Functional.linear.0") -> Path:
    """Write the step of a residual layer whose norm, between the two calls, was not recorded."""
    calls = (
        ("Tensor.__add__.0.forward", (sized(1.0), sized(2.0)), (sized(2.5),)),
        (f"{last}.forward", (sized(3.0), sized(4.0)), (sized(5.0),)),
        (f"{last}.backward", (sized(6.0),), (sized(7.0), sized(8.0))),
        ("Tensor.__add__.0.backward", (sized(arriving),), (sized(arriving), sized(arriving))),
    )
    with DumpWriter(folder, DumpInfo(level="L1")) as writer:
        for name, inputs, outputs in calls:
            writer.write(CallRecord(name, inputs=inputs, kwargs={}, outputs=outputs))
    return folder


@pytest.mark.parametrize(
    ("last", "culprit"),
    [
        # Of a linear layer the gradient of its input is not recorded by every tool.
        ("Functional.linear.0", "Functional.linear.0.backward"),
        # All gradients of this one are: what arrives was made by nobody who was recorded.
        ("Functional.gelu.0", "Tensor.__add__.0.backward"),
    ],
)
def test_the_nearest_sender_is_named(tmp_path: Path, last: str, culprit: str) -> None:
    reference = write(tmp_path / "reference", 9.0, last=last)
    answer = blame(write(tmp_path / "candidate", 9.009, last=last), reference)
    assert answer.culprit == culprit
    rounded = write(tmp_path / "rounded", 9.000001, last=last)
    assert blame(rounded, reference).culprit is None
