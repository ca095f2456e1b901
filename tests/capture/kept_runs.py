"""What runs that kept their data have left, for the tests of who writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.system.cores import count_cores

__all__ = ["calls_of", "every_core", "records_of"]


@pytest.fixture(autouse=True)
def every_core() -> Iterator[None]:
    """Where torch leaves a core free, files are written there."""
    before = torch.get_num_threads()
    torch.set_num_threads(count_cores())
    yield
    torch.set_num_threads(before)


def records_of(folder: Path) -> list[str]:
    # The mark of a run, its folder and the time differ.
    return [path.read_text().partition('"data"')[2] for path in sorted(folder.rglob("dump.json"))]


def calls_of(folder: Path) -> list[Any]:
    """The calls of each dump; numpy sums in another order, which shows in the last digits."""
    return [
        json.loads(
            path.read_text(), parse_float=lambda text: f"{round(float(text), 12) + 0.0:.9g}"
        )["data"]
        for path in sorted(folder.rglob("dump.json"))
    ]
