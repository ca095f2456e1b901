"""Small runs that overflow in one way or another, captured with task overflow_check."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe import Dump, PrecisionDebugger, open_dump
from tensorprobe.summary.statistics import Four, Measured, StatisticsQueue

__all__ = ["FaultyDevice", "LateStatistics", "search", "try_search"]


class LateStatistics(StatisticsQueue):
    """Numbers of tensors that come as those of a device do: all of a batch, when it is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self._late: deque[tuple[Measured, Four | None]] = deque()
        self._told = 0

    @property
    def delivered(self) -> int:
        return self._told

    def ask(self, tensor: torch.Tensor) -> Measured:
        numbers = super().ask(tensor).numbers
        measured = Measured(None)
        self._late.append((measured, numbers))
        self.asked += 1
        return measured

    def poll(self) -> None:
        """None has arrived."""

    def fetch(self) -> bool:
        has_any = bool(self._late)
        while self._late:
            measured, measured.numbers = self._late.popleft()
            self._told += 1
        return has_any


class FaultyDevice(TorchDispatchMode):
    """A device whose kernel of one operator gets the first element wrong."""

    def __init__(self, operator: Any, value: float = float("inf")) -> None:
        super().__init__()
        self._operator = operator
        self._value = value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is self._operator:
            result.view(-1)[0] = self._value
        return result


def try_search(
    path: Path,
    run: Callable[[], Any],
    *,
    level: str = "L1",
    steps: int = 1,
    model: torch.nn.Module | None = None,
    **fields: Any,
) -> None:
    """Run something for some steps while its overflows are looked for."""
    fields.setdefault("overflow_nums", -1)
    config = path.parent / f"{path.name}.json"
    config.write_text(
        json.dumps(
            {
                "task": "overflow_check",
                "level": level,
                "dump_path": str(path),
                "overflow_check": fields,
            }
        )
    )
    debugger = PrecisionDebugger(config)
    for _ in range(steps):
        debugger.start(model)
        run()
        debugger.stop()
        debugger.step()
    debugger.close()


def search(path: Path, run: Callable[[], Any], **options: Any) -> Dump:
    """Run something while its overflows are looked for; returns the dump."""
    try_search(path, run, **options)
    return open_dump(path)
