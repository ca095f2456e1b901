"""The collector waits longer while a step is recorded, and is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.capture.gc_pace import GcPace


@pytest.fixture(autouse=True)
def own_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(500, 9, 8)
    yield
    gc.set_threshold(*before)


def test_a_step_is_recorded_at_another_pace_and_stop_gives_it_back(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=str(tmp_path), level="L1", task="statistics")
    debugger.start()
    assert gc.get_threshold()[0] > 5000 and gc.get_threshold()[1] == 9
    torch.ones(2).neg()
    debugger.stop()
    assert gc.get_threshold()[:2] == (500, 9)


def test_what_the_user_sets_meanwhile_stays() -> None:
    pace = GcPace()
    pace.open()
    pace.open()
    gc.set_threshold(123, 4, 5)
    pace.close()
    assert gc.get_threshold()[:2] == (123, 4)
    pace.close()
    assert gc.get_threshold()[:2] == (123, 4)


def test_a_collector_that_never_searches_does_not_begin_to() -> None:
    gc.set_threshold(0)
    pace = GcPace()
    pace.open()
    assert gc.get_threshold()[0] == 0
    pace.close()
    assert gc.get_threshold()[0] == 0
