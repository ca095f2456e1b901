"""Small models for `blame_pairs.py`: each makes a module and a function that computes its loss.

The file is longer than 500 lines because it is a list of models, none of which needs another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FIRST", "MODELS", "SECOND", "THIRD", "Built"]

Built = tuple[nn.Module, Callable[[], Tensor]]


def text(module: nn.Module, **more: Tensor) -> Callable[[], Tensor]:
    ids = torch.randint(0, 60, (3, 11))
    return lambda: module(input_ids=ids, **more).last_hidden_state.float().pow(2).mean()


def bert(dtype: torch.dtype) -> Built:
    library: Any = import_module("transformers")

    model = library.BertModel(
        library.BertConfig(
            vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).to(dtype)  # fmt: skip
    return model, text(model)


def t5(dtype: torch.dtype) -> Built:
    library: Any = import_module("transformers")

    model = library.T5Model(
        library.T5Config(vocab_size=60, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3,
                 dropout_rate=0.0)
    ).to(dtype)  # fmt: skip
    return model, text(model, decoder_input_ids=torch.randint(0, 60, (3, 7)))


def vit(dtype: torch.dtype) -> Built:
    library: Any = import_module("transformers")

    model = library.ViTModel(
        library.ViTConfig(
            hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
            image_size=16, patch_size=4, attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).to(dtype)  # fmt: skip
    pixels = torch.randn(3, 3, 16, 16).to(dtype)
    return model, lambda: model(pixel_values=pixels).last_hidden_state.float().pow(2).mean()


class Recurrent(nn.Module):
    """An LSTM that classifies texts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.lstm = nn.LSTM(16, 20, batch_first=True)
        self.head = nn.Linear(20, 5)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logarithm of the chance of each class."""
        states, _ = self.lstm(self.embedding(ids))
        chances: Tensor = functional.log_softmax(self.head(states[:, -1]), -1)
        return chances


def lstm(dtype: torch.dtype) -> Built:
    model = Recurrent().to(dtype)
    ids, targets = torch.randint(0, 40, (6, 9)), torch.randint(0, 5, (6,))
    return model, lambda: functional.nll_loss(model(ids).float(), targets)


class Images(nn.Module):
    """Convolutions down and up, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(12), nn.BatchNorm2d(16)])
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.middle, self.head = nn.Linear(8 * 64, 30), nn.Linear(30, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Return four numbers for each image."""
        x = functional.max_pool2d(functional.relu(self.norms[0](self.first(images))), 2)
        x = functional.leaky_relu(self.norms[1](self.second(x)))
        x = functional.avg_pool2d(torch.sigmoid(self.up(x)), 2)
        result: Tensor = self.head(torch.tanh(self.middle(x.flatten(1))))
        return result


def images(dtype: torch.dtype) -> Built:
    model = Images().to(dtype)
    given, wanted = torch.randn(4, 3, 16, 16).to(dtype), torch.randn(4, 4)
    return model, lambda: functional.smooth_l1_loss(model(given).float(), wanted)


# --- the second set ------------------------------------------------------------------------------


class Mobile(nn.Module):
    """Depthwise convolutions with batch norms, squeeze and excitation, hard swishes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)
        self.deep, self.norm2 = nn.Conv2d(12, 12, 3, 1, 1, groups=12), nn.BatchNorm2d(12)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.point, self.norm3 = nn.Conv2d(12, 20, 1), nn.BatchNorm2d(20)
        self.head = nn.Linear(20, 6)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = functional.hardswish(self.norm(self.stem(images)))
        y = functional.relu6(self.norm2(self.deep(x)))
        gate = functional.adaptive_avg_pool2d(y, 1)
        gate = functional.hardsigmoid(self.excite(functional.relu(self.squeeze(gate))))
        x = self.norm3(self.point(x + y * gate))
        x = functional.max_pool2d(x, 3, 2, 1).mean((2, 3))
        return functional.cross_entropy(self.head(x), targets, label_smoothing=0.1)


def mobile(dtype: torch.dtype) -> Built:
    model = Mobile().to(dtype)
    batch = torch.randn(4, 3, 16, 16).to(dtype), torch.randint(0, 6, (4,))
    return model, lambda: model(*batch)


class Wave(nn.Module):
    """Gated dilated convolutions over sound."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(2, 12, 5, padding=2)
        self.gates = nn.ModuleList(nn.Conv1d(12, 24, 3, dilation=d, padding=d) for d in (1, 2, 4))
        self.back = nn.ModuleList(nn.Conv1d(12, 12, 1) for _ in range(3))
        self.down, self.up = nn.Conv1d(12, 16, 4, 2, 1), nn.ConvTranspose1d(16, 12, 4, 2, 1)
        self.slope = nn.PReLU(12)
        self.end = nn.Conv1d(12, 2, 1)

    def forward(self, sound: Tensor, wanted: Tensor) -> Tensor:
        """Return the loss."""
        x = functional.pad(sound, (2, 2), mode="reflect")[..., 2:-2]
        x = self.start(x)
        skip = torch.zeros_like(x)
        for gate, back in zip(self.gates, self.back, strict=True):
            left, right = gate(x).chunk(2, 1)
            y = torch.tanh(left) * torch.sigmoid(right)
            skip = skip + y
            x = x + back(y)
        y = self.up(functional.elu(self.down(skip)))
        y = self.end(self.slope(y + x))
        return functional.l1_loss(y, wanted) + 0.1 * functional.huber_loss(y, wanted)


def wave(dtype: torch.dtype) -> Built:
    model = Wave().to(dtype)
    batch = torch.randn(3, 2, 32).to(dtype), torch.randn(3, 2, 32).to(dtype)
    return model, lambda: model(*batch)


class Tagger(nn.Module):
    """A bidirectional LSTM of two layers, attention over time, and a cell of a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(24, 16)
        self.score, self.head = nn.Linear(24, 1), nn.Linear(40, 7)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        states, _ = self.lstm(self.embedding(ids))
        mask = ids == 0
        weights = self.score(torch.tanh(states)).squeeze(-1).masked_fill(mask, -1e4)
        pooled = (weights.softmax(-1).unsqueeze(-1) * states).sum(1)
        hidden = pooled.new_zeros(len(ids), 16)
        for step in range(3):
            hidden = self.cell(states[:, step], hidden)
        scores = self.head(torch.cat([pooled, hidden], -1))
        return functional.nll_loss(functional.log_softmax(scores, -1), targets)


def tagger(dtype: torch.dtype) -> Built:
    model = Tagger().to(dtype)
    ids = torch.randint(1, 50, (5, 9))
    ids[2, 6:] = 0
    targets = torch.randint(0, 7, (5,))
    return model, lambda: model(ids, targets)


class Translator(nn.Module):
    """torch's own transformer: encoder and decoder with masks."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 24), nn.Embedding(16, 24)
        self.body = nn.Transformer(
            24, 3, 1, 2, 40, dropout=0.0, batch_first=True, activation="gelu"
        )
        self.head = nn.Linear(24, 50)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        causal = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), 1)
        x = self.tokens(source) * math.sqrt(24) + self.places(torch.arange(source.shape[1]))
        y = self.tokens(target) * math.sqrt(24) + self.places(torch.arange(target.shape[1]))
        states = self.body(x, y, tgt_mask=causal)
        logits = self.head(states[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def translator(dtype: torch.dtype) -> Built:
    model = Translator().to(dtype)
    source, target = torch.randint(0, 50, (2, 9)), torch.randint(0, 50, (2, 7))
    return model, lambda: model(source, target)


class Windows(nn.Module):
    """Windowed attention over patches with a table of relative places, as Swin has it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 4, 4)
        self.table = nn.Parameter(0.1 * torch.randn(49, 3))
        rows = torch.arange(4)
        grid = torch.stack(torch.meshgrid(rows, rows, indexing="ij")).flatten(1)
        offset = grid[:, :, None] - grid[:, None, :] + 3
        self.register_buffer("index", offset[0] * 7 + offset[1])
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(4))
        self.qkv = nn.ModuleList(nn.Linear(24, 72) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(24, 48) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(48, 24) for _ in range(2))
        self.head = nn.Linear(24, 5)

    def attend(self, x: Tensor, layer: int) -> Tensor:
        """Return what one layer attends to."""
        n, size, _ = x.shape
        q, k, v = self.qkv[layer](x).reshape(n, size, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * 8**-0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(16, 16, 3).permute(2, 0, 1)  # type: ignore
        scores = functional.softmax(scores + bias.unsqueeze(0), -1)
        result: Tensor = self.out[layer]((scores @ v).transpose(1, 2).reshape(n, size, 24))
        return result

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = self.patch(images).permute(0, 2, 3, 1)
        for layer in range(2):
            shift = 2 * layer
            y = torch.roll(self.norms[2 * layer](x), (-shift, -shift), (1, 2))
            n, h, w, c = y.shape
            y = y.view(n, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
            y = self.attend(y, layer).view(n, h // 4, w // 4, 4, 4, c).transpose(2, 3)
            x = x + torch.roll(y.reshape(n, h, w, c), (shift, shift), (1, 2))
            y = functional.gelu(self.up[layer](self.norms[2 * layer + 1](x)))
            x = x + self.down[layer](y)
        return functional.cross_entropy(self.head(x.mean((1, 2))), targets)


def windows(dtype: torch.dtype) -> Built:
    model = Windows().to(dtype)
    batch = torch.randn(2, 3, 32, 32).to(dtype), torch.randint(0, 5, (2,))
    return model, lambda: model(*batch)


class Denoiser(nn.Module):
    """A block of a diffusion model: time embedding, group norms, attention, up and down."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(5))
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
        self.qkv, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
        self.shrink = nn.Conv2d(16, 16, 3, 2, 1)
        self.leave = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, images: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        """Return the loss."""
        rates = torch.exp(-math.log(1e4) * torch.arange(8) / 8).to(images.dtype)
        angles = steps[:, None].to(images.dtype) * rates[None]
        shift, size = self.time(torch.cat([angles.sin(), angles.cos()], 1)).chunk(2, 1)
        alpha = torch.cos(steps.to(images.dtype) / 100 * math.pi / 2)[:, None, None, None]
        start = self.enter(alpha * images + torch.sqrt(1 - alpha**2) * noise)
        x = self.convs[0](functional.silu(self.norms[0](start)))
        x = self.norms[1](x) * (1 + size[..., None, None]) + shift[..., None, None]
        x = start + self.convs[1](functional.silu(x))
        y = self.shrink(x)
        n, c, h, w = y.shape
        q, k, v = self.qkv(self.norms[2](y)).reshape(n, 3, 2, c // 2, h * w).unbind(1)
        mixed = functional.scaled_dot_product_attention(q.mT, k.mT, v.mT)
        y = y + self.out(mixed.mT.reshape(n, c, h, w))
        y = y + self.convs[2](functional.silu(self.norms[3](y)))
        y = functional.interpolate(y, scale_factor=2.0, mode="nearest")
        x = torch.cat([self.norms[4](y), x], 1)
        return functional.mse_loss(self.leave(functional.silu(x)), noise)


def denoiser(dtype: torch.dtype) -> Built:
    model = Denoiser().to(dtype)
    batch = torch.randn(2, 3, 8, 8).to(dtype), torch.randn(2, 3, 8, 8).to(dtype)
    steps = torch.tensor([13, 71])
    return model, lambda: model(*batch, steps)


class GraphAttention(nn.Module):
    """Two layers of graph attention: softmax over the edges of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(10, 16)
        self.turn = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))
        self.source = nn.ParameterList(0.3 * torch.randn(16) for _ in range(2))
        self.target = nn.ParameterList(0.3 * torch.randn(16) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, nodes: Tensor, edges: Tensor, wanted: Tensor) -> Tensor:
        """Return the loss."""
        x = functional.elu(self.enter(nodes))
        begin, end = edges
        for turn, source, target in zip(self.turn, self.source, self.target, strict=True):
            h = turn(x)
            score = (h * source).sum(-1)[begin] + (h * target).sum(-1)[end]
            score = functional.leaky_relu(score, 0.2)
            top = torch.full((len(x),), -1e9, dtype=x.dtype)
            top = top.scatter_reduce(0, end, score.detach(), "amax")
            weight = torch.exp(score - top[end])
            total = torch.zeros(len(x), dtype=x.dtype).index_add(0, end, weight)
            share = weight / (total.index_select(0, end) + 1e-9)
            x = x + torch.zeros_like(h).index_add(0, end, h[begin] * share.unsqueeze(-1))
        pooled = self.head(self.norm(x)).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(pooled, wanted)


def gat(dtype: torch.dtype) -> Built:
    model = GraphAttention().to(dtype)
    nodes, edges = torch.randn(20, 10).to(dtype), torch.randint(0, 20, (2, 60))
    wanted = torch.randint(0, 2, (20,)).to(dtype)
    return model, lambda: model(nodes, edges, wanted)


class Clicks(nn.Module):
    """Bags of embeddings, their products, and two towers, as DLRM has it."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(30, 12, mode=mode) for mode in ("sum", "mean", "sum")
        )
        self.bottom = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 12), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(18, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor, wanted: Tensor) -> Tensor:
        """Return the loss."""
        x = self.bottom(dense)
        vectors = torch.stack([x, *(bag(ids, offsets) for bag in self.bags)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        y = torch.cat([x, products[:, rows, columns]], 1)
        chance = torch.sigmoid(self.top(y)).squeeze(1)
        return functional.binary_cross_entropy(chance, wanted)


def clicks(dtype: torch.dtype) -> Built:
    model = Clicks().to(dtype)
    dense, ids = torch.randn(6, 8).to(dtype), torch.randint(0, 30, (20,))
    offsets = torch.tensor([0, 3, 5, 9, 14, 18])
    wanted = torch.randint(0, 2, (6,)).to(dtype)
    return model, lambda: model(dense, ids, offsets, wanted)


class Scan(nn.Module):
    """A selective state space: cumulative sums, softplus, einsum, RMS norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.norm = nn.RMSNorm(16)
        self.enter, self.mix = nn.Linear(16, 48), nn.Conv1d(24, 24, 3, padding=2, groups=24)
        self.select = nn.Linear(24, 24 + 8)
        self.decay = nn.Parameter(torch.log(1 + torch.arange(4.0)).repeat(24, 1))
        self.leave, self.head = nn.Linear(24, 16), nn.Linear(16, 40)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = self.embedding(ids)
        u, gate = self.enter(self.norm(x)).chunk(2, -1)
        u = functional.silu(self.mix(u.transpose(1, 2))[..., : ids.shape[1]].transpose(1, 2))
        delta, b, c = self.select(u).split([24, 4, 4], -1)
        delta = functional.softplus(delta)
        fade = torch.cumsum(torch.einsum("btd,ds->btds", delta, -torch.exp(self.decay)), 1)
        fed = torch.einsum("btd,bts,btd->btds", delta, b, u)
        state = torch.cumsum(fed * torch.exp(-fade.clamp(min=-8)), 1) * torch.exp(
            fade.clamp(min=-8)
        )
        y = torch.einsum("btds,bts->btd", state, c) * functional.silu(gate)
        x = x + self.leave(y)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def scan(dtype: torch.dtype) -> Built:
    model = Scan().to(dtype)
    ids, targets = torch.randint(0, 40, (2, 10)), torch.randint(0, 40, (2, 10))
    return model, lambda: model(ids, targets)


class Points(nn.Module):
    """Shared layers over points, the largest of each feature, distances and a triplet loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16)
        self.second, self.norm2 = nn.Conv1d(16, 24, 1), nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 12)

    def embed(self, points: Tensor) -> Tensor:
        """Return a unit vector for each cloud."""
        x = functional.relu(self.norm1(self.first(points)))
        x = functional.mish(self.norm2(self.second(x)))
        x = torch.max(x, 2)[0] + torch.logsumexp(x, 2) / 8
        return functional.normalize(self.head(x), dim=1)

    def forward(self, anchor: Tensor, same: Tensor, other: Tensor) -> Tensor:
        """Return the loss."""
        a, b, c = self.embed(anchor), self.embed(same), self.embed(other)
        spread = torch.cdist(a, c).clamp(max=1.5).mean()
        alike = functional.cosine_similarity(a, b).mean()
        return functional.triplet_margin_loss(a, b, c) + 0.1 * spread - 0.1 * alike


def points(dtype: torch.dtype) -> Built:
    model = Points().to(dtype)
    batch = [torch.randn(4, 3, 14).to(dtype) for _ in range(3)]
    return model, lambda: model(*batch)


class Variational(nn.Module):
    """An autoencoder that draws its code, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.1), nn.Flatten(1))
        self.code = nn.Linear(128, 12)
        self.open = nn.Linear(6, 128)
        self.drop = nn.Dropout(0.2)
        self.up = nn.ConvTranspose2d(8, 1, 4, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the loss."""
        mean, spread = self.code(self.down(images)).chunk(2, 1)
        code = mean + torch.exp(0.5 * spread) * torch.randn_like(mean)
        x = self.drop(functional.softplus(self.open(code))).view(-1, 8, 4, 4)
        made = torch.sigmoid(self.up(x))
        known = functional.mse_loss(made, images.sigmoid(), reduction="sum") / len(images)
        prior = -0.5 * torch.mean(torch.sum(1 + spread - mean.pow(2) - spread.exp(), 1))
        return known + prior


def vae(dtype: torch.dtype) -> Built:
    model = Variational().to(dtype)
    given = torch.randn(4, 1, 8, 8).to(dtype)
    return model, lambda: model(given)


class Experts(nn.Module):
    """Tokens sorted to experts with a capacity, as a mixture of experts does it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(40, 16), nn.LayerNorm(16)
        self.gate = nn.Linear(16, 4, bias=False)
        self.up = nn.Parameter(0.2 * torch.randn(4, 16, 24))
        self.down = nn.Parameter(0.2 * torch.randn(4, 24, 16))
        self.head = nn.Linear(16, 40)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = self.embedding(ids).flatten(0, 1)
        h = self.norm(x)
        chances = functional.softmax(self.gate(h), -1)
        weight, chosen = torch.topk(chances, 2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        hot = functional.one_hot(chosen.flatten(), 4)
        slot = (torch.cumsum(hot, 0) * hot).sum(-1) - 1
        keep = slot < 14
        place = (chosen.flatten() * 14 + slot)[keep]
        token = torch.arange(len(x)).repeat_interleave(2)[keep]
        boxes = torch.zeros(4 * 14, 16, dtype=x.dtype).index_copy(0, place, h[token])
        inner = functional.gelu(torch.bmm(boxes.view(4, 14, 16), self.up), approximate="tanh")
        done = torch.bmm(inner, self.down).view(-1, 16)
        part = done.index_select(0, place) * weight.flatten()[keep].unsqueeze(-1)
        x = x.scatter_add(0, token.unsqueeze(-1).expand(-1, 16), part)
        balance = (chances.mean(0) * hot.float().mean(0)).sum() * 4
        return functional.cross_entropy(self.head(x), targets.flatten()) + 0.01 * balance


def experts(dtype: torch.dtype) -> Built:
    model = Experts().to(dtype)
    ids, targets = torch.randint(0, 40, (2, 12)), torch.randint(0, 40, (2, 12))
    return model, lambda: model(ids, targets)


# --- the third set -------------------------------------------------------------------------------


class Radiance(nn.Module):
    """Rays through a field: sines of places, a perceptron with a skip, what absorbs on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(27, 24), nn.Linear(24 + 27, 24)
        self.third, self.head = nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, points: Tensor, steps: Tensor, wanted: Tensor) -> Tensor:
        """Return the loss."""
        waves = points.unsqueeze(-1) * (2.0 ** torch.arange(4).to(points.dtype)) * math.pi
        waves = torch.stack([waves.sin(), waves.cos()], -1).flatten(-3)
        x = torch.cat([points, waves], -1)
        y = functional.relu(self.first(x))
        y = functional.relu(self.second(torch.cat([y, x], -1)))
        colour, thick = self.head(functional.relu(self.third(y))).split([3, 1], -1)
        alpha = 1 - torch.exp(-functional.softplus(thick.squeeze(-1) - 1) * steps)
        left = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], -1), -1)
        seen = (torch.sigmoid(colour) * (alpha * left[:, :-1]).unsqueeze(-1)).sum(1)
        return functional.mse_loss(seen, wanted)


def radiance(dtype: torch.dtype) -> Built:
    model = Radiance().to(dtype)
    batch = torch.rand(8, 10, 3), 0.1 + 0.2 * torch.rand(8, 10), torch.rand(8, 3)
    return model, lambda: model(*(item.to(dtype) for item in batch))


class Speech(nn.Module):
    """Convolutions over a spectrum, a GRU in both directions, and a loss over alignments."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(10, 16, 3, padding=1), nn.Conv1d(16, 16, 3, 2, 1)
        self.norm = nn.InstanceNorm1d(16, affine=True)
        self.rnn = nn.GRU(16, 10, batch_first=True, bidirectional=True)
        self.head = nn.Linear(20, 8)

    def forward(self, sound: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = functional.gelu(self.conv1(sound))
        x = functional.hardtanh(self.norm(self.conv2(x)), -2, 2)
        x, _ = self.rnn(x.transpose(1, 2))
        chances = functional.log_softmax(self.head(x), -1).transpose(0, 1).float()
        lengths = torch.full((len(sound),), chances.shape[0]), torch.full((len(sound),), 4)
        return functional.ctc_loss(chances, targets, *lengths)


def speech(dtype: torch.dtype) -> Built:
    model = Speech().to(dtype)
    sound, targets = torch.randn(3, 10, 24).to(dtype), torch.randint(1, 8, (3, 4))
    return model, lambda: model(sound, targets)


class Spatial(nn.Module):
    """An image that is turned before it is classified: affine grid and sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.turn = nn.Conv2d(2, 6, 5, 2), nn.Linear(6, 6)
        self.conv, self.norm = nn.Conv2d(2, 12, 3, padding=1), nn.InstanceNorm2d(12, affine=True)
        self.deep, self.head = nn.Conv2d(12, 12, 3, 2, 1), nn.Linear(12 * 4, 5)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        seen = functional.adaptive_max_pool2d(functional.relu(self.look(images)), 1).flatten(1)
        still = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=images.dtype)
        theta = (0.2 * torch.tanh(self.turn(seen)) + still).view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
        x = functional.grid_sample(images, grid, align_corners=False)
        x = functional.leaky_relu(self.norm(self.conv(x)), 0.1)
        x = functional.avg_pool2d(functional.selu(self.deep(x)), 3)
        x = functional.interpolate(x, (2, 2), mode="bilinear", align_corners=False)
        return functional.multi_margin_loss(self.head(x.flatten(1)).float(), targets)


def spatial(dtype: torch.dtype) -> Built:
    model = Spatial().to(dtype)
    batch = torch.randn(3, 2, 14, 14).to(dtype), torch.randint(0, 5, (3,))
    return model, lambda: model(*batch)


class Linearised(nn.Module):
    """Attention without softmax, with turned places, and a gated perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(48, 24)
        self.norms = nn.ModuleList(nn.LayerNorm(24, eps=1e-6) for _ in range(3))
        self.query, self.key = nn.Linear(24, 24, bias=False), nn.Linear(24, 24, bias=False)
        self.value, self.out = nn.Linear(24, 24), nn.Linear(24, 24)
        self.up, self.down = nn.Linear(24, 64), nn.Linear(32, 24)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = self.tokens(ids)
        h = self.norms[0](x)
        n, size, _ = h.shape
        q, k, v = (part(h).view(n, size, 3, 8).transpose(1, 2)
                   for part in (self.query, self.key, self.value))  # fmt: skip
        angle = torch.outer(torch.arange(size).float(), 0.5 ** torch.arange(4)).to(x.dtype)
        cos, sin = torch.cos(angle), torch.sin(angle)
        q, k = (torch.cat([part[..., :4] * cos - part[..., 4:] * sin,
                           part[..., 4:] * cos + part[..., :4] * sin], -1)
                for part in (q, k))  # fmt: skip
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        memory = torch.cumsum(torch.einsum("bhtd,bhte->bhtde", k, v), 2)
        scale = torch.cumsum(k, 2)
        mixed = torch.einsum("bhtd,bhtde->bhte", q, memory)
        mixed = mixed / (torch.einsum("bhtd,bhtd->bht", q, scale).unsqueeze(-1) + 1e-3)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(functional.glu(self.up(self.norms[1](x)), -1))
        logits = functional.linear(self.norms[2](x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=3)


def linearised(dtype: torch.dtype) -> Built:
    model = Linearised().to(dtype)
    ids, targets = torch.randint(0, 48, (2, 9)), torch.randint(0, 48, (2, 9))
    return model, lambda: model(ids, targets)


class Pairs(nn.Module):
    """Images and texts that belong together, as CLIP learns them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 4, 4, bias=False)
        self.first, self.place = nn.Parameter(torch.randn(24)), nn.Parameter(torch.randn(10, 24))
        self.tokens = nn.Embedding(40, 24)
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(4))
        self.attention = nn.ModuleList(nn.Linear(24, 72) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(24, 48) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(48, 24) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def block(self, x: Tensor, number: int, mask: Tensor | None) -> Tensor:
        """Return what one layer makes of it."""
        n, size, _ = x.shape
        qkv = self.attention[number](self.norms[2 * number](x))
        q, k, v = (t.view(n, size, 2, 12).transpose(1, 2) for t in qkv.chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + y.transpose(1, 2).reshape(n, size, 24)
        h = self.up[number](self.norms[2 * number + 1](x))
        result: Tensor = x + self.down[number](h * torch.sigmoid(1.702 * h))
        return result

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        """Return the loss."""
        patches = self.patch(images).flatten(2).transpose(1, 2)
        first = self.first.expand(len(images), 1, -1)
        seen = self.block(torch.cat([first, patches], 1) + self.place, 0, None)[:, 0]
        size = ids.shape[1]
        mask = torch.full((size, size), -1e4, dtype=seen.dtype).triu(1)
        read = self.block(self.tokens(ids) + self.place[:size], 1, mask)
        read = read[torch.arange(len(ids)), ids.argmax(-1)]
        seen = seen / seen.norm(dim=-1, keepdim=True)
        read = read / read.norm(dim=-1, keepdim=True)
        logits = self.scale.exp() * seen @ read.t()
        labels = torch.arange(len(ids))
        return (functional.cross_entropy(logits, labels)
                + functional.cross_entropy(logits.t(), labels)) / 2  # fmt: skip


def pairs(dtype: torch.dtype) -> Built:
    model = Pairs().to(dtype)
    images, ids = torch.randn(4, 3, 12, 12).to(dtype), torch.randint(0, 40, (4, 7))
    return model, lambda: model(images, ids)


class Capped(nn.Module):
    """A decoder with shared keys, capped scores, and norms around every part."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(48, 24)
        self.scales = nn.ParameterList(0.1 * torch.randn(24) for _ in range(5))
        self.query, self.both = nn.Linear(24, 32, bias=False), nn.Linear(24, 32, bias=False)
        self.out = nn.Linear(32, 24, bias=False)
        self.gate, self.up = nn.Linear(24, 40, bias=False), nn.Linear(24, 40, bias=False)
        self.down = nn.Linear(40, 24, bias=False)

    def norm(self, x: Tensor, number: int) -> Tensor:
        """Return it divided by its root mean square."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        result: Tensor = (wide * (1 + self.scales[number].float())).to(x.dtype)
        return result

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = self.tokens(ids) * 24**0.5
        n, size = ids.shape
        h = self.norm(x, 0)
        q = self.query(h).view(n, size, 4, 8).transpose(1, 2)
        k, v = self.both(h).view(n, size, 2, 2, 8).permute(2, 0, 3, 1, 4)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = torch.matmul(q, k.transpose(2, 3)) * 8**-0.5
        scores = torch.tanh(scores / 5.0) * 5.0
        places = torch.arange(size)
        near = (places[:, None] - places[None, :]).abs() < 4
        allowed = torch.tril(torch.ones(size, size, dtype=torch.bool)) & near
        scores = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
        y = torch.matmul(functional.softmax(scores.float(), -1).to(q.dtype), v)
        x = x + self.norm(self.out(y.transpose(1, 2).flatten(2)), 1)
        h = self.norm(x, 2)
        y = self.down(functional.gelu(self.gate(h), approximate="tanh") * self.up(h))
        x = self.norm(x + self.norm(y, 3), 4)
        logits = torch.tanh(functional.linear(x, self.tokens.weight) / 30) * 30
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def capped(dtype: torch.dtype) -> Built:
    model = Capped().to(dtype)
    ids, targets = torch.randint(0, 48, (2, 8)), torch.randint(0, 48, (2, 8))
    return model, lambda: model(ids, targets)


class Molecules(nn.Module):
    """Messages over bonds: means, largest and sums of neighbours, then one number a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(12, 16), nn.Embedding(4, 16)
        self.layers = nn.ModuleList(nn.Linear(48, 16) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, kinds: Tensor, edges: Tensor, types: Tensor, graph: Tensor) -> Tensor:
        """Return the loss."""
        x = self.atoms(kinds)
        start, end = edges
        degree = torch.bincount(end, minlength=len(x)).clamp(min=1).to(x.dtype).unsqueeze(-1)
        place = end.unsqueeze(-1).expand(-1, 16)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            sent = functional.relu(x[start] + self.bonds(types))
            added = torch.zeros_like(x).scatter_add(0, place, sent)
            most = torch.zeros_like(x).scatter_reduce(0, place, sent, "amax")
            y = layer(torch.cat([x, added / degree, most], -1))
            x = x + functional.silu(norm(y))
        whole = torch.zeros(3, 16, dtype=x.dtype).index_add(0, graph, x)
        result = self.head(whole).squeeze(-1)
        return functional.smooth_l1_loss(result, torch.ones_like(result))


def molecules(dtype: torch.dtype) -> Built:
    model = Molecules().to(dtype)
    kinds, edges = torch.randint(0, 12, (18,)), torch.randint(0, 18, (2, 50))
    types, graph = torch.randint(0, 4, (50,)), torch.arange(18) // 6
    return model, lambda: model(kinds, edges, types, graph)


class Mixer(nn.Module):
    """Perceptrons over places and over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(48, 20)
        self.norms = nn.ModuleList(nn.LayerNorm(20) for _ in range(4))
        self.places = nn.ModuleList(nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
                                    for _ in range(2))  # fmt: skip
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 20))
            for _ in range(2)
        )
        self.head = nn.Linear(20, 6)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        x = functional.unfold(images, 4, stride=4).transpose(1, 2)
        x = self.patch(x)
        for layer in range(2):
            y = self.places[layer](self.norms[2 * layer](x).transpose(1, 2)).transpose(1, 2)
            x = x + y
            x = x + self.channels[layer](self.norms[2 * layer + 1](x))
        chances = torch.log_softmax(self.head(x.mean(1)), -1)
        soft = functional.one_hot(targets, 6).to(x.dtype) * 0.9 + 0.1 / 6
        return functional.kl_div(chances, soft, reduction="batchmean")


def mixer(dtype: torch.dtype) -> Built:
    model = Mixer().to(dtype)
    batch = torch.randn(3, 3, 16, 16).to(dtype), torch.randint(0, 6, (3,))
    return model, lambda: model(*batch)


FIRST = {"bert": bert, "t5": t5, "vit": vit, "lstm": lstm, "images": images}
SECOND = {
    "mobile": mobile, "wave": wave, "tagger": tagger, "translator": translator,
    "windows": windows, "denoiser": denoiser, "gat": gat, "clicks": clicks, "scan": scan,
    "points": points, "vae": vae, "experts": experts,
}  # fmt: skip
THIRD = {
    "radiance": radiance, "speech": speech, "spatial": spatial, "linearised": linearised,
    "pairs": pairs, "capped": capped, "molecules": molecules, "mixer": mixer,
}  # fmt: skip
MODELS: dict[str, Callable[[torch.dtype], Built]] = {**FIRST, **SECOND, **THIRD}
