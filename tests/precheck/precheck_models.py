"""A small training step with most kinds of calls in it, and how to capture one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.store import RankDump

Capture = Callable[..., RankDump]


def capture_into(folder: Path) -> Capture:
    """Return a function that captures what another one runs."""
    numbers = iter(range(1000))

    def run(
        what: Callable[[], Any],
        *,
        task: str = "tensor",
        level: str = "L1",
        model: nn.Module | None = None,
    ) -> RankDump:
        path = folder / f"dump{next(numbers)}"
        debugger = PrecisionDebugger(dump_path=str(path), task=task, level=level)
        debugger.start(model)
        what()
        debugger.stop()
        debugger.step()
        return open_dump(path).part()

    return run


def train_a_little() -> None:
    """One step of a small model with most kinds of calls in it."""
    with unseen():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
        given, target = torch.randn(6, 8), torch.randint(0, 4, (6,))
    result = functional.dropout(model(given), 0.5)
    loss = functional.cross_entropy(result * 2 + 1, target)
    loss.backward()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Run without being captured."""
    with torch._C.DisableTorchFunction():
        yield
