"""Small runs that overflow in one way or another, captured with task overflow_check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tensorprobe import Dump, PrecisionDebugger, open_dump

__all__ = ["WrongExp", "search", "try_search", "wrong_square"]


class WrongExp(torch.autograd.Function):
    """An exponential whose kernel is faulty: some results are infinite though they need not be."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()
        result[0] = float("inf")
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.saved_tensors[0]


def wrong_square(x: torch.Tensor) -> torch.Tensor:
    """Square numbers; this stands for a device whose kernel is wrong at the first element."""
    result = torch.square(x)
    result.view(-1)[0] = float("inf")
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
