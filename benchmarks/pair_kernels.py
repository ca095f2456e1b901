"""Kernels that run in another way, and faults: what `blame_pairs.py` plants below the recorded API.

A `Kernels` mode sees every ATen call. Noise replaces kernels by others that are as good (wider
internals, other orders of summation, unfused steps); a fault changes the result of one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Change", "Kernels", "Planted", "flat"]

aten = torch.ops.aten
Tensor = torch.Tensor
Change = Callable[[Any, tuple[Any, ...]], Any]
Planted = tuple[Any, int, Change]

PRODUCTS = {
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.baddbmm,
    aten.convolution,
    aten.convolution_backward,
}
FUSED = {
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.native_group_norm,
    aten.native_group_norm_backward,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten._softmax,
    aten._softmax_backward_data,
    aten._log_softmax,
    aten._log_softmax_backward_data,
    aten.gelu,
    aten.gelu_backward,
    aten.silu,
    aten.silu_backward,
    aten.softplus,
    aten.softplus_backward,
    aten.elu,
    aten.elu_backward,
    aten.mish,
    aten.mse_loss,
    aten.smooth_l1_loss,
    aten.huber_loss,
    aten.linalg_vector_norm,
    aten.sigmoid_backward,
    aten.tanh_backward,
    aten.hardswish,
    aten.hardswish_backward,
    aten.glu,
    aten.glu_backward,
}
PLAIN = {aten.tanh, aten.sigmoid, aten.exp, aten.log, aten.rsqrt, aten.sum, aten.mean, aten.cumsum}
PLAIN |= {aten.softplus, aten.erf, aten.sin, aten.cos, aten.logsumexp, aten.var, aten.var_mean}
ADDING = {aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_}


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs some kernels in another way, and one of them wrongly.

    Attributes:
        seen: how often the kernel with the fault ran, or every kernel where none is planted.
        culprit: the recorded call in which the fault was planted, if the recorder names it.
    """

    def __init__(
        self,
        noise: str,
        fault: Planted | None,
        *,
        is_recorder: Callable[[], bool] = lambda: False,
        call_name: Callable[[], str | None] = lambda: None,
        hush: Callable[[bool], None] = lambda quiet: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noise, self.fault = noise, fault
        self.seen: dict[Any, int] = {}
        self.culprit: str | None = None
        self._is_recorder, self._call_name, self._hush = is_recorder, call_name, hush
        self._sequence: list[tuple[int, str | None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_recorder():
            return func(*args, **kwargs)
        packet = func.overloadpacket
        node = torch._C._current_autograd_node()
        if node is None:
            number = torch._C._autograd._get_sequence_nr()
            self._sequence.append((number, self._call_name()))
        # What a kernel is made of here is not part of the run, so nothing of it is recorded.
        self._hush(True)
        try:
            with torch._C.DisableTorchFunction():
                result = self.run(func, packet, args, kwargs)
                count = self.seen.get(packet, 0)
                self.seen[packet] = count + 1

                if self.fault is not None and (packet, count) == self.fault[:2]:
                    result = self.fault[2](result, args)
                    self.culprit = self._name_culprit(node)
        finally:
            self._hush(False)
        return result

    def _name_culprit(self, node: Any) -> str | None:
        if node is None:
            return self._call_name()
        number = node._sequence_nr()
        name = next((name for after, name in self._sequence if after > number), None)
        return None if name is None else name.replace(".forward", ".backward")

    def run(self, func: Any, packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a kernel in the way that this noise means."""
        if self.noise == "f64" and packet in PRODUCTS | FUSED | PLAIN:
            return in_float64(func, args, kwargs)
        if self.noise == "tf32" and packet in PRODUCTS:
            return func(*mapped(args, tf32), **kwargs)
        if self.noise in ("splitk", "device") and packet in (aten.mm, aten.bmm):
            a, b = args
            half = a.shape[-1] // 2
            if half and a.dtype == torch.float32:
                return func(a[..., :half], b[..., :half, :]) + func(a[..., half:], b[..., half:, :])
        if self.noise in ("splitk", "device") and packet is aten.addmm and not kwargs:
            bias, a, b = args
            half = a.shape[-1] // 2
            if half and a.dtype == torch.float32:
                return a[:, half:] @ b[half:] + (a[:, :half] @ b[:half] + bias)
        if self.noise == "batches" and packet in (aten.mm, aten.addmm, aten.bmm) and not kwargs:
            return in_batches(func, args)
        if self.noise == "device" and packet in FUSED and func in decomposition_table:
            result = decomposition_table[func](*args, **kwargs)
            return like(result, func(*args, **kwargs))
        if self.noise == "device" and packet in PRODUCTS:
            return in_float64(func, args, kwargs)
        if self.noise in ("scatter", "device") and packet in ADDING:
            target, dim, index, source = args[:4]
            order = index.flip(0 if index.dim() == 1 else dim)
            return func(target, dim, order, source.flip(dim), **kwargs)
        return func(*args, **kwargs)


def in_batches(func: Any, args: tuple[Any, ...]) -> Any:
    """Run a product for one half of its rows and then for the other, as a smaller batch would."""
    *bias, a, b = args
    half = a.shape[0] // 2
    if not half or (bias and bias[0].dim() > 1):
        return func(*args)
    is_batch = func.overloadpacket is aten.bmm
    return torch.cat(
        [
            func(*bias, a[rows], b[rows] if is_batch else b)
            for rows in (slice(half), slice(half, None))
        ]
    )


def in_float64(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    native = func(*args, **kwargs)
    wide = {k: v for k, v in kwargs.items() if not isinstance(v, torch.dtype)}
    if len(wide) < len(kwargs):
        return native
    return like(func(*mapped(args, lambda t: t.double()), **wide), native)


def like(result: Any, native: Any) -> Any:
    """Return results in the types and layouts that the plain kernel gives."""
    if isinstance(native, Tensor):
        return result.to(native.dtype).reshape(native.shape) if native.numel() else native
    if isinstance(native, (list, tuple)):
        return tuple(like(a, b) for a, b in zip(result, native, strict=True))
    return native


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else []


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return value


def tf32(t: Tensor) -> Tensor:
    if t.dtype != torch.float32:
        return t
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


# --- faults --------------------------------------------------------------------------------------


def on(index: int, change: Callable[[Tensor, tuple[Any, ...]], Any]) -> Change:
    """Change one of a kernel's results."""

    def run(result: Any, args: tuple[Any, ...]) -> Any:
        if isinstance(result, Tensor):
            return change(result, args)
        items = list(result)
        index_ = (
            index
            if items[index] is not None
            else next(i for i, item in enumerate(items) if item is not None)
        )
        items[index_] = change(items[index_], args)
        return tuple(items)

    return run


def scale(factor: float, index: int = 0) -> Change:
    return on(index, lambda t, _: t * factor)


def noise(size: float, index: int = 0) -> Change:
    generator = torch.Generator().manual_seed(7)
    return on(index, lambda t, _: t * (1 + size * torch.randn(t.shape, generator=generator).to(t)))


def one_element(change: Callable[[float], float], index: int = 0, *, place: int = -1) -> Change:
    """Change one element: the largest, or the one at a place."""

    def run(t: Tensor, _: tuple[Any, ...]) -> Tensor:
        t = t.clone(memory_format=torch.contiguous_format)
        chosen = place % t.numel() if place >= 0 else int(t.abs().reshape(-1).argmax())
        t.view(-1)[chosen] = change(float(t.view(-1)[chosen]))
        return t

    return on(index, run)


def shifted(t: Tensor, _: tuple[Any, ...]) -> Tensor:
    return t.roll(1, 0)


def shifted_last(t: Tensor, _: tuple[Any, ...]) -> Tensor:
    return t.roll(1, -1)


def transposed(t: Tensor, _: tuple[Any, ...]) -> Tensor:
    """Read the last two axes in the other order."""
    return t.transpose(-1, -2).reshape(t.shape)


def negated_half(t: Tensor, _: tuple[Any, ...]) -> Tensor:
    t = t.clone()
    half = t.reshape(-1)[: t.numel() // 2]
    t.view(-1)[: t.numel() // 2] = -half
    return t


def missing_bias(t: Tensor, args: tuple[Any, ...]) -> Any:
    return t - args[0]


def low_accumulation(t: Tensor, args: tuple[Any, ...]) -> Any:
    bias, a, b = args if len(args) == 3 else (t.new_zeros(t.shape[-1:]), *args)
    total = bias.to(torch.bfloat16).expand_as(t)
    for k in range(a.shape[-1]):
        step = a[..., k : k + 1].to(torch.bfloat16) * b[..., k : k + 1, :].to(torch.bfloat16)
        total = (total + step).bfloat16()
    return total.to(t.dtype)


def truncated(t: Tensor, args: tuple[Any, ...]) -> Any:
    bias, a, b = args
    exact = torch.addmm(bias.float(), a.float(), b.float())
    return (exact.view(torch.int32) & ~0xFFFF).view(torch.float32).to(t.dtype)


def through(dtype: torch.dtype) -> Change:
    """Round a result to fewer bits and back."""
    return on(0, lambda t, _: t.to(dtype).to(t.dtype))


def tanh_gelu(t: Tensor, args: tuple[Any, ...]) -> Any:
    return functional.gelu(args[0], approximate="tanh")


def hard_sigmoid(t: Tensor, args: tuple[Any, ...]) -> Any:
    return (args[0] / 6 + 0.5).clamp(0, 1)


def rational_tanh(t: Tensor, args: tuple[Any, ...]) -> Any:
    x = args[0].clamp(-4.97, 4.97)
    square = x * x
    return (
        x
        * (135135 + square * (17325 + square * (378 + square)))
        / (135135 + square * (62370 + square * (3150 + square * 28)))
    )


def leaky(t: Tensor, args: tuple[Any, ...]) -> Any:
    return torch.where(args[1] <= 0, args[0] * 0.01, t)


def no_sum_term(t: Tensor, args: tuple[Any, ...]) -> Any:
    return args[0] * args[1]


def biased_mean(t: Tensor, args: tuple[Any, ...]) -> Any:
    return t * 24 / 23


def saturated(t: Tensor, _: tuple[Any, ...]) -> Tensor:
    limit = float(t.abs().reshape(-1).kthvalue(int(0.995 * t.numel())).values)
    return t.clamp(-limit, limit)


def unbiased_norm(t: Tensor, args: tuple[Any, ...]) -> Any:
    n = args[0].numel() // args[0].shape[1]
    return t * ((n - 1) / n) ** 0.5


def softmax_over(dim: int) -> Change:
    return on(0, lambda t, args: torch.softmax(args[0].float(), dim).to(t.dtype))


def swapped(t: Tensor, args: tuple[Any, ...]) -> Any:
    return args[1] - args[0]


def again(func: Any, change: Callable[[list[Any]], list[Any]]) -> Change:
    """Run the kernel once more with other arguments: what a wrong constant inside it would give."""
    return lambda result, args: func(*change(list(args)))


def with_item(place: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    def change(args: list[Any]) -> list[Any]:
        args[place] = value(args[place]) if callable(value) else value
        return args

    return change


def overwritten(t: Tensor, args: tuple[Any, ...]) -> Any:
    """An index_add or scatter_add that stores instead of adding."""
    target, dim, index, source = args[:4]
    if index.dim() == 1 and source.dim() > 1:
        return target.index_copy(dim, index, source)
    return target.scatter(dim, index, source)


def stale() -> Change:
    """Return zeros for the last row, as a kernel does that stops too early."""

    def run(t: Tensor, _: tuple[Any, ...]) -> Tensor:
        t = t.clone()
        t[-1:] = 0
        return t

    return on(0, run)


def flipped_bit(value: float, bit: int) -> float:
    import struct

    word = struct.unpack("<I", struct.pack("<f", value))[0] ^ (1 << bit)
    found: float = struct.unpack("<f", struct.pack("<I", word))[0]
    return found if math.isfinite(found) else value * 2.0**16
