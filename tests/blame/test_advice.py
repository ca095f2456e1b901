"""What to do next fits what the dumps hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planted import Kernels, aten, capture, scaled
from torch import nn

from tensorprobe.blame import blame
from tensorprobe.blame.conclusion import Accused


def accuse(
    tmp_path: Path, *, level: str = "L1", tasks: tuple[str, str] = ("tensor", "tensor")
) -> tuple[Accused, ...]:
    """Return the suspects of a run whose first linear layer is wrong by half."""
    kernels = Kernels(aten.addmm, 0, scaled(1.5))
    candidate = capture(tmp_path / "candidate", kernels, level=level, task=tasks[0])
    reference = capture(tmp_path / "reference", level=level, task=tasks[1])
    return blame(candidate, reference).accused


def test_modules_that_were_replayed_lead_to_the_calls_inside(tmp_path: Path) -> None:
    first, *others = accuse(tmp_path, level="L0")
    assert first.call == "Module.first.Linear.forward.0"
    assert first.cause.advice.startswith("capture at level mix")
    assert "task tensor" not in first.cause.advice
    # What the next module is given was made by code between modules, of what the first one made.
    assert [other.call for other in others if other.cause.kind == "state"] == []


def test_modules_of_statistics_lead_to_the_calls_and_to_data(tmp_path: Path) -> None:
    advice = accuse(tmp_path, level="L0", tasks=("statistics", "statistics"))[0].cause.advice
    assert advice.startswith("capture at level mix") and "task tensor" in advice


@pytest.mark.parametrize(
    ("tasks", "wanted"),
    [
        (("statistics", "statistics"), "capture this call with task tensor on both sides"),
        (("tensor", "statistics"), "capture the reference with task tensor, too"),
        (("statistics", "tensor"), "capture the candidate with task tensor, too"),
    ],
)
def test_data_are_asked_for_where_they_are_missing(
    tmp_path: Path, tasks: tuple[str, str], wanted: str
) -> None:
    assert accuse(tmp_path, tasks=tasks)[0].cause.advice.startswith(wanted)


def test_who_has_given_all_data_is_led_to_the_proof(tmp_path: Path) -> None:
    (first, *_) = accuse(tmp_path)
    assert first.basis == "replay" and "capture" not in first.cause.advice


def test_nobody_is_told_to_capture_what_cannot_be_replayed(tmp_path: Path) -> None:
    """Data of a module whose class nobody knows are there, and calls are recorded."""

    class Odd(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch._C.DisableTorchFunction():
                return x * self.factor

    def put(factor: float) -> object:
        def prepare(model: nn.Module) -> None:
            model.second = nn.Sequential(model.second, Odd(factor))  # type: ignore[assignment]

        return prepare

    candidate = capture(tmp_path / "a", prepare=put(1.5), level="mix")  # type: ignore[arg-type]
    reference = capture(tmp_path / "b", prepare=put(1.0), level="mix")  # type: ignore[arg-type]
    first = blame(candidate, reference).first
    assert first is not None and first.call == "Module.second.1.Odd.forward.0"
    assert first.cause.advice.startswith("no recorded call inside it is at fault")
