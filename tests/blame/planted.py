"""Tiny pairs of runs, captured for real, with a fault planted in one kernel of the candidate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe import PrecisionDebugger

aten = torch.ops.aten
Change = Callable[[Any, tuple[Any, ...]], Any]


class Kernels(TorchDispatchMode):
    """Changes the result of the n-th run of one kernel, below everything that is recorded."""

    def __init__(self, packet: Any = None, number: int = 0, change: Change | None = None) -> None:
        super().__init__()
        self.packet, self.number, self.change = packet, number, change
        self.seen = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            result = func(*args, **(kwargs or {}))
            if self.change is not None and func.overloadpacket is self.packet:
                self.seen += 1
                if self.seen - 1 == self.number:
                    result = self.change(result, args)
        return result


class Exact(Kernels):
    """Computes every product of matrices in float64: other rounding everywhere, no fault."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in (aten.addmm, aten.mm, aten.bmm):
            with torch._C.DisableTorchFunction():
                return func(*(arg.double() for arg in args)).to(args[-1].dtype)
        return super().__torch_dispatch__(func, types, args, kwargs)


class Net(nn.Module):
    """An embedding, two layers with norm and dropout, and a loss."""

    def __init__(self, *, chance: float = 0.0, eps: float = 1e-5, scaled: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16, eps=eps)
        self.head = nn.Linear(16, 5)
        self.chance, self.scaled = chance, scaled

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        y = self.second(functional.gelu(self.first(x)))
        if self.scaled:
            y = y * 1.5
        x = self.norm(x + functional.dropout(y, self.chance, self.training))
        scores: torch.Tensor = self.head(x)
        return scores


def capture(
    folder: Path,
    kernels: Kernels | None = None,
    *,
    prepare: Callable[[nn.Module], object] | None = None,
    level: str = "L1",
    task: str = "tensor",
    dtype: torch.dtype = torch.float32,
    seed: int = 3,
    data_seed: int = 4,
    dropout_seed: int = 5,
    config: str | None = None,
    **options: Any,
) -> Path:
    """Capture one training step of the net and return the dump's folder."""
    torch.manual_seed(seed)
    model = Net(**options).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape).to(dtype))
    if prepare is not None:
        with torch.no_grad():
            prepare(model)
    torch.manual_seed(data_seed)
    ids, targets = torch.randint(0, 20, (6, 8)), torch.randint(0, 5, (48,))
    torch.manual_seed(dropout_seed)
    debugger = (
        PrecisionDebugger(task=task, dump_path=str(folder), level=level)
        if config is None
        else PrecisionDebugger(config, dump_path=str(folder), level=level)
    )
    debugger.start(model)
    with kernels or Kernels():
        scores = model(ids)
        functional.cross_entropy(scores.reshape(48, 5).float(), targets).backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    return folder


def scaled(factor: float, index: int = 0) -> Change:
    """A change that multiplies one result."""

    def change(result: Any, args: tuple[Any, ...]) -> Any:
        if isinstance(result, torch.Tensor):
            return result * factor
        items = list(result)
        items[index] = items[index] * factor
        return tuple(items)

    return change


def with_element(change: Callable[[float], float]) -> Change:
    """A change of the largest element."""

    def run(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
        result = result.clone()
        place = int(result.abs().reshape(-1).argmax())
        result.view(-1)[place] = change(float(result.reshape(-1)[place]))
        return result

    return run
