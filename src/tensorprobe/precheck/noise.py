"""How far rounding alone may move a result: repeat the precise run with random rounding errors.

What one kernel hands on to another, or a step to the next one of a kernel that torch knows how to
take apart, is multiplied by 1 + u·r, r between -1 and 1, u the rounding error of the recorded
dtype; what its range does not hold becomes infinite, what is too small for it is no longer exact.
What moves then may move; a result that lies much further off than these runs do was not moved by
rounding.

The last result is not rounded: its rounding error is known not to be larger than u, and need not
be tried. Only steps of a kernel that is taken apart are all rounded. As with true rounding, r
follows from the number: equal numbers have equal errors, which do not cancel in a sum. It is a hash
of the number's bits, another one in each run and each time.
"""

from __future__ import annotations

import math
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe.operations.facts import EXACT, UNINITIALISED
from tensorprobe.replay.arguments import map_leaves

__all__ = ["RoundingNoise", "disturb", "is_view", "keeps_numbers"]

# One thread draws random numbers, so that larger tensors repeat them. A prime: no row of a matrix
# has the errors of another.
_DRAWN = 1_048_573


class RoundingNoise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds a rounding error to what every kernel reads of another one's results.

    Enter it for the forward and again for the backward of a call.

    Args:
        dtype: whose rounding errors and range they are.
        unit: the largest relative error of rounding to it.
        generator: where the errors come from.
        by_steps: whether kernels of several steps are taken apart.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, a second and more, to keep it away from here."""
        return False

    def __init__(
        self,
        dtype: torch.dtype,
        unit: float,
        generator: torch.Generator,
        *,
        by_steps: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._by_steps = by_steps
        self._dtype = dtype
        self._unit = unit
        self._generator = generator
        # Results by the address of their memory, and their rounded copies once somebody has read
        # them. They are kept, so that no other tensor gets the address.
        self._depth = 0
        self._results: dict[int, torch.Tensor] = {}
        self._rounded: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or is_view(func):
            return func(*args, **kwargs)
        steps = _steps_of(func) if self._by_steps and not _keeps_numbers(func) else None
        if steps is not None:
            self._depth += 1
            try:
                with self:
                    result = steps(*args, **kwargs)
            finally:
                self._depth -= 1
            if result is not NotImplemented:
                return result
        read = self._write_rounded if func._schema.is_mutable else self._as_rounded
        # Of a step as torch names it, the kernel alone: what is around it takes many times as long.
        kernel = getattr(func, "impl_aten", func)
        result = kernel(*map_leaves(tuple(args), read), **map_leaves(kwargs, read))
        if not _keeps_numbers(func):
            for value in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(value, torch.Tensor):
                    self._keep(value)
        return result

    def _keep(self, result: torch.Tensor) -> None:
        """Remember what a kernel computed; what others read of it is rounded."""
        if not _can_be_moved(result):
            return
        if self._depth or not _is_dense(result):
            # Steps compute places, too, which must be the same for whoever reads them.
            disturb(result, self._unit, self._generator, result_of=self._dtype)
            return
        place = result.untyped_storage().data_ptr()
        self._results[place] = result
        self._rounded.pop(place, None)

    def _as_rounded(self, value: Any) -> Any:
        """Return what a kernel reads: a rounded copy of another one's result, or a view of it."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        place = value.untyped_storage().data_ptr()
        result = self._results.get(place)
        if result is None or value.dtype != result.dtype or value.is_conj():
            return value
        rounded = self._rounded.get(place)
        if rounded is None:
            rounded = self._rounded[place] = result.detach().clone()
            disturb(rounded, self._unit, self._generator, result_of=self._dtype)
        start = value.storage_offset() - result.storage_offset()
        return rounded.as_strided(value.shape, value.stride(), start)

    def _write_rounded(self, value: Any) -> Any:
        """Round the result itself that a kernel is going to write into."""
        rounded = self._as_rounded(value)
        if rounded is not value:
            place = value.untyped_storage().data_ptr()
            self._results.pop(place).copy_(self._rounded.pop(place))
        return value


def disturb(
    tensor: torch.Tensor,
    unit: float,
    generator: torch.Generator,
    *,
    result_of: torch.dtype | None = None,
) -> None:
    """Add a rounding error to each element of a floating-point tensor, in place.

    Args:
        tensor: on the CPU; what cannot be written to or is no float stays as it is.
        unit: the largest relative error.
        generator: where the errors come from.
        result_of: the dtype that a computed result has the range of. Without one the tensor is an
            input: an algorithm may be as exact as the whole of it is large, so its elements move
            by as much as a typical one, each by itself.
    """
    if not _can_be_moved(tensor):
        return
    real = tensor.real.dtype if tensor.is_complex() else tensor.dtype
    if result_of is None:
        size = tensor.abs()
        typical = _typical_of(size)
        shift = _draw_errors(tensor, real, unit, generator) * typical
        tensor.add_(torch.where(size > 4 * unit * typical, shift, 0.0))
    if result_of is None or tensor.is_complex():
        tensor.mul_(_draw_errors(tensor, real, unit, generator).add_(1))
        return
    tensor.mul_(_errors(tensor, real, unit, generator).add_(1))
    _confine(tensor, result_of, real, generator)


def _typical_of(size: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of the finite ones of some magnitudes."""
    norm: torch.Tensor = torch.linalg.vector_norm(size)
    if bool(torch.isfinite(norm)):
        return norm / math.sqrt(size.numel())
    # To leave some out takes a copy of all.
    return size[torch.isfinite(size)].square().mean().sqrt().nan_to_num_(0.0)


def _confine(
    tensor: torch.Tensor, dtype: torch.dtype, real: torch.dtype, generator: torch.Generator
) -> None:
    """Give a result the range of a dtype: infinite beyond it, coarse where it has few digits."""
    limits = torch.finfo(dtype)
    size = tensor.abs()
    low, high = torch.aminmax(size)
    # NaN is in no order, so that it is no reason to leave out what is beyond.
    if not high <= limits.max:
        tensor.masked_fill_(tensor > limits.max, float("inf"))
        tensor.masked_fill_(tensor < -limits.max, float("-inf"))
    if low >= limits.smallest_normal:
        return
    # Below the smallest normal number the error no longer shrinks with the number.
    step = limits.smallest_normal * limits.eps / 2
    small = (size < limits.smallest_normal) & (size != 0)
    if bool(small.any()):
        tensor.add_(torch.where(small, _errors(tensor, real, step, generator), 0.0))


def _errors(
    tensor: torch.Tensor, real: torch.dtype, unit: float, generator: torch.Generator
) -> torch.Tensor:
    """Return an error of at most `unit` for each element: equal numbers have equal ones."""
    width = torch.int32 if real is torch.float32 else torch.int64
    salt = int(torch.randint(1 << 30, (), generator=generator))
    # Multiplying wraps around; the upper bits of a product depend on all lower ones, so they are
    # brought down before each.
    mixed = tensor.detach().contiguous().view(width) ^ salt
    if width is torch.int64:
        mixed ^= mixed >> 32
    for factor in (0x2C1B3C6D, 0x297A2D39):
        mixed ^= mixed >> 16
        mixed *= factor
    mixed ^= mixed >> 15
    mixed &= (1 << 24) - 1
    return mixed.to(real).mul_(2 * unit / (1 << 24)).sub_(unit)


def _draw_errors(
    tensor: torch.Tensor, real: torch.dtype, unit: float, generator: torch.Generator
) -> torch.Tensor:
    """Return an error of at most `unit` for each element, whatever number it is."""
    size = tensor.numel()
    drawn = torch.rand(min(size, _DRAWN), generator=generator, dtype=real)
    drawn.mul_(2 * unit).sub_(unit)
    if size > _DRAWN:
        drawn = drawn.repeat(-(-size // _DRAWN))[:size]
    return drawn.reshape(tensor.shape)


def _can_be_moved(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds floats of its own."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return False
    if tensor.layout is not torch.strided or tensor._is_zerotensor() or tensor.is_conj():
        return False
    if tensor.dtype not in _MOVED:
        return False
    # Elements that share their memory cannot be written to.
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return not any(size > 1 and stride == 0 for size, stride in pairs)


_MOVED = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a copy has the same strides, so that views of the one are views of the other."""
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    step = 1
    for stride, size in order:
        if size > 1 and stride != step:
            return False
        step *= size
    return True


@cache
def _steps_of(func: torch._ops.OpOverload) -> Any:
    """Return how torch takes a kernel apart into smaller ones, or None."""
    table = _decompositions()
    if func is torch.ops.aten.soft_margin_loss_backward.default:
        return _soft_margin_loss_backward
    # Taken apart, attention returns something else beside its result than its backward expects.
    if func._schema.is_mutable or "attention" in func._schema.name:
        return None
    return table.get(func)


@cache
def _decompositions() -> dict[Any, Any]:
    """Return how torch takes kernels apart, without its compiler.

    Many of these functions import the compiler when they are first called, only to keep it away
    from themselves; that takes longer than most checks.
    """
    try:
        from torch import _refs
        from torch._decomp import decomposition_table
    except ImportError:
        return {}
    for function in (*decomposition_table.values(), *vars(_refs).values()):
        while isinstance(function, FunctionType):
            vars(function).setdefault("__dynamo_disable", function)
            held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            function = held["fn"].cell_contents if "fn" in held else None
    return decomposition_table


def _soft_margin_loss_backward(
    gradient: torch.Tensor, given: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """Take apart what torch does not: e to the power of a large margin overflows a half."""
    power = (-target * given).exp()
    share = power / (power + 1)
    return -target * share * gradient * (1 / given.numel() if reduction == 1 else 1)


@cache
def _keeps_numbers(func: torch._ops.OpOverload) -> bool:
    """Whether an operator moves numbers and does not compute: what comes out was rounded before."""
    if "reduce" in func._schema.overload_name:
        return False
    name = func._schema.name.partition("::")[2]
    return name in EXACT or name in UNINITIALISED


def keeps_numbers(func: torch._ops.OpOverload) -> bool:
    """Whether an operator moves numbers and does not compute: its result is exact in any dtype."""
    return is_view(func) or _keeps_numbers(func)


@cache
def is_view(func: torch._ops.OpOverload) -> bool:
    """Whether a result is a view, which must stay one; its numbers are those of its base."""
    return any(
        value.alias_info is not None and not value.alias_info.is_write
        for value in func._schema.returns
    )
