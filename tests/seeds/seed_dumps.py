"""The dumps that the seeds presuppose, captured once from a small model and copied where wanted.

npu_dump/ bench_dump/ gpu_dump/     the run under test, and the trusted one under both its names
    dump.json stack.json …          one rank
    step0/rank0/ step0/rank1/       many ranks
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger, save

__all__ = ["lay_out_dumps", "lay_out_saved_values"]

_CALLS_OF_ATTENTION = 5


class VocabParallelEmbedding(nn.Module):
    """Named as the module in the mapping of seed 004."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.embedding(tokens, self.weight)


class Model(nn.Module):
    """Has every call that the seeds name: an embedding, a pool, an operator of an NPU, a linear."""

    def __init__(self, operators: ModuleType) -> None:
        super().__init__()
        self.operators = operators
        holder, inner, embedding = nn.Module(), nn.Module(), nn.Module()
        embedding.word_embedding = VocabParallelEmbedding()
        inner.embedding = embedding
        holder.language_model = inner
        self.module = holder
        self.linear = nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        embedded = self.module.language_model.embedding.word_embedding(tokens)
        for _ in range(_CALLS_OF_ATTENTION):
            embedded = self.operators.npu_fusion_attention(embedded, embedded)
        pooled = functional.max_pool2d(image, 3, 2, 1, 1, ceil_mode=False, return_indices=False)
        result = functional.relu(self.linear(embedded))
        return result.sum() + pooled.mean()


def lay_out_dumps(folder: Path) -> None:
    """Put the dumps of both runs into a folder, as one rank and as two."""
    _lay_out(folder, _captured_step)


def lay_out_saved_values(folder: Path) -> None:
    """Put single values of both runs into a folder, as one rank and as two."""
    _lay_out(folder, _saved_values)


def _lay_out(folder: Path, rank_of: Callable[[float], Path]) -> None:
    for name, moved in (("npu_dump", 5.0), ("bench_dump", 0.0), ("gpu_dump", 0.0)):
        rank = rank_of(moved)
        shutil.copytree(rank, folder / name)
        for number in range(2):
            shutil.copytree(rank, folder / name / "step0" / f"rank{number}")


@functools.cache
def _captured_step(moved: float) -> Path:
    """Capture one step of the model, one weight of which is moved, and return its rank's folder."""
    torch.manual_seed(0)
    operators = ModuleType("torch_npu")
    operators.npu_fusion_attention = lambda query, key: functional.scaled_dot_product_attention(  # type: ignore[attr-defined]
        query, key, key
    )
    model = Model(operators)
    tokens, image = torch.arange(6).view(1, 6), torch.randn(1, 64, 14, 14, requires_grad=True)
    with torch.no_grad():
        model.linear.weight[3, 3] += moved
    debugger = PrecisionDebugger(dump_path=_new_folder(), task="tensor", level="mix")
    debugger.register_custom_api(operators, "npu_fusion_attention", "NPU")
    debugger.start(model)
    model(tokens, image).backward()
    return _finish(debugger)


@functools.cache
def _saved_values(moved: float) -> Path:
    debugger = PrecisionDebugger(dump_path=_new_folder(), task="tensor", level="debug")
    save({"scores": torch.arange(4.0) + moved}, "attention")
    return _finish(debugger)


def _finish(debugger: PrecisionDebugger) -> Path:
    debugger.step()
    debugger.close()
    return Path(debugger.dump_path, "step0", "rank")


def _new_folder() -> str:
    path = tempfile.mkdtemp(prefix="seeds-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
