"""Which calls are checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from precheck_models import Capture, capture_into, train_a_little

from tensorprobe.precheck.plan import plan_calls


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return capture_into(tmp_path)


def test_function_calls_are_taken_and_modules_are_not(capture: Capture) -> None:
    part = capture(train_a_little, task="statistics", level="mix")
    planned = plan_calls(part)
    assert any(name.startswith("Module.") for name in part.names)
    assert not any(call.name.startswith("Module.") for call in planned)
    assert all(call.name == f"{call.shown}.forward" for call in planned)


def test_names_are_chosen_by_part_and_by_pattern(capture: Capture) -> None:
    part = capture(train_a_little, task="statistics")

    def shown(**options: list[str]) -> list[str]:
        return [call.shown for call in plan_calls(part, **options)]  # type: ignore[arg-type]

    assert shown(include=["linear"]) == ["Functional.linear.0", "Functional.linear.1"]
    assert shown(include=["*.linear.1.*"]) == ["Functional.linear.1"]
    assert "Functional.dropout.0" not in shown(exclude=["dropout"])
    assert shown(include=["nothing"]) == []


def test_calls_that_differ_in_more_than_values_are_not_equal(capture: Capture) -> None:
    def run() -> None:
        with torch._C.DisableTorchFunction():
            one, two = torch.randn(3), torch.randn(3)
        torch.add(one, two)
        torch.add(two, one)
        torch.add(one, two, alpha=2)
        torch.add(one, 1.0)
        torch.add(one, float("nan"))
        torch.add(two, float("nan"))

    planned = plan_calls(capture(run, task="statistics"), dedupe=True)
    assert [(call.shown, call.stands_for) for call in planned] == [
        ("Torch.add.0", 2),
        ("Torch.add.2", 1),
        ("Torch.add.3", 1),
        ("Torch.add.4", 2),
    ]
