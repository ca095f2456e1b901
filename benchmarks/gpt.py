"""The GPT of the benchmarks: explicit softmax attention, so that every step is an API call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """How large the model and a batch are."""

    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocabulary: int
    dtype: torch.dtype


CPU = Shape(4, 256, 8, 128, 8, 1000, torch.float32)
GPU = Shape(12, 1024, 16, 1024, 8, 32000, torch.bfloat16)
# So small that nothing counts but what the host does for each call.
HOST = Shape(12, 32, 4, 8, 2, 50, torch.float32)


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend, then think."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        weights = functional.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.proj(mixed)
        deeper: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + deeper


class Gpt(nn.Module):
    """A small language model with a loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        ones = torch.ones(shape.length, shape.length, dtype=torch.bool)
        self.register_buffer("mask", ones.triu(1))

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of one batch."""
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def make_step(shape: Shape, device: str) -> tuple[Gpt, torch.Tensor, torch.Tensor]:
    """Return a model and one batch, the same every time."""
    torch.manual_seed(0)
    model = Gpt(shape).to(device=device, dtype=shape.dtype)
    size = (shape.batch, shape.length)
    ids = torch.randint(shape.vocabulary, size, device=device)
    targets = torch.randint(shape.vocabulary, size, device=device)
    return model, ids, targets
