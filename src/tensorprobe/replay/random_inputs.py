"""Make up the input tensors of a call from their statistics: dtype, shape, range.

The numbers lie between the recorded minimum and maximum, so integers are valid as the indices or
classes that they were. What a range does not tell, the rules here know: masks, probabilities,
matrices with a property, indices that must not repeat. The same seed and call give the same
numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch

from tensorprobe.errors import RebuildError
from tensorprobe.names import ApiCall
from tensorprobe.records import TensorValue
from tensorprobe.replay.memory import require_room
from tensorprobe.replay.rebuild import find_dtype
from tensorprobe.replay.refusals import REFUSALS

__all__ = ["make_inputs", "make_like", "seed_of"]

_POSITIVE_DEFINITE = frozenset(
    ("cholesky", "linalg.cholesky", "linalg.cholesky_ex", "logdet", "linalg_cholesky",
     "linalg_cholesky_ex", "lobpcg")
)  # fmt: skip
_SYMMETRIC = frozenset(
    ("linalg.eigh", "linalg.eigvalsh", "linalg_eigh", "linalg_eigvalsh", "_linalg_eigh")
)
# Solved or inverted: a matrix near a singular one would only show its own condition.
_REGULAR = frozenset(
    ("inverse", "linalg.inv", "linalg.inv_ex", "linalg.solve", "linalg.solve_ex",
     "linalg.tensorinv", "linalg.tensorsolve", "linalg.solve_triangular", "triangular_solve",
     "cholesky_solve", "cholesky_inverse", "linalg.ldl_factor", "linalg.lu_factor", "lu_solve",
     "linalg.lu_solve", "linalg.cond", "linalg_inv", "linalg_solve", "linalg.lu", "linalg.slogdet",
     "linalg.det", "det", "slogdet", "linalg.matrix_power", "matrix_power", "linalg.multi_dot")
)  # fmt: skip
# Two writes to one place may come in any order.
_UNIQUE = frozenset(
    ("index_copy", "index_copy_", "index_fill", "index_fill_", "index_put", "index_put_",
     "__setitem__", "scatter", "scatter_", "put", "put_", "max_unpool1d", "max_unpool2d",
     "max_unpool3d")
)  # fmt: skip
_SORTED = frozenset(("searchsorted", "bucketize"))
_CLASSES = frozenset(("cross_entropy", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward"))
_COUNTED_MASKS = frozenset(
    ("__setitem__", "index_put", "index_put_", "masked_scatter", "masked_scatter_")
)
# At or below this a float is what a mask adds to a score that is to vanish.
_MASKED = -1e4


def seed_of(seed: int, name: str) -> int:
    """Return the seed of one call's numbers.

    >>> seed_of(1, "Torch.add.0.forward") == seed_of(1, "Torch.add.0.forward")
    True
    """
    return zlib.crc32(f"{seed}:{name}".encode())


def make_inputs(name: ApiCall, values: Sequence[TensorValue], seed: int) -> list[torch.Tensor]:
    """Return tensors as these values describe them, in their order, on the CPU.

    Args:
        name: the call that they are for.
        values: what was recorded of them.
        seed: where the numbers come from.

    Raises:
        RebuildError: this torch has no such dtype, or there is no room for such tensors.
    """
    require_room((value.shape for value in values), "its inputs")
    generator = torch.Generator().manual_seed(seed)
    api = name.api_name
    tensors = []
    for place, value in enumerate(values):
        dtype = find_dtype(value.dtype)
        try:
            tensors.append(_tensor(value, dtype, api, values, place, generator))
        except REFUSALS as err:
            raise RebuildError(
                f"no {value.dtype} of the shape {list(value.shape)} between {value.min} and "
                f"{value.max} can be made up: {err}"
            ) from err
    return tensors


def _tensor(
    value: TensorValue,
    dtype: torch.dtype,
    api: str,
    values: Sequence[TensorValue],
    place: int,
    generator: torch.Generator,
) -> torch.Tensor:
    if dtype is torch.bool:
        return _mask(value, _count_of_true(api, values, place), generator)
    if not (dtype.is_floating_point or dtype.is_complex):
        return _integers(value, dtype, api, generator)
    return _floats(value, dtype, api, place, generator)


def make_like(tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor | None]:
    """Return a random gradient for each tensor that wants one, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return [
        _normal(tuple(tensor.shape), tensor.dtype, generator) if tensor.requires_grad else None
        for tensor in tensors
    ]


def _normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_complex:
        parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
        return torch.complex(*parts).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def _range_of(value: TensorValue) -> tuple[float, float] | None:
    """Return the finite range that was recorded, or None."""
    low = value.min if value.finite_min is None else value.finite_min
    high = value.max if value.finite_max is None else value.finite_max
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return float(low), float(high)


# --- masks and integers ------------------------------------------------------------------------


def _mask(value: TensorValue, count: int | None, generator: torch.Generator) -> torch.Tensor:
    size = math.prod(value.shape)
    if count is not None:
        flat = torch.zeros(size, dtype=torch.bool)
        flat[torch.randperm(size, generator=generator)[:count]] = True
        return flat.reshape(value.shape)
    if value.max is not None and not value.max:
        return torch.zeros(value.shape, dtype=torch.bool)
    if value.min:
        return torch.ones(value.shape, dtype=torch.bool)
    share = value.mean if value.mean is not None and 0 < value.mean < 1 else 0.5
    return torch.rand(value.shape, generator=generator) < share


def _count_of_true(api: str, values: Sequence[TensorValue], place: int) -> int | None:
    """Return how many elements a mask must choose: as many as there are values to write."""
    if api not in _COUNTED_MASKS or place + 1 >= len(values):
        return None
    source = values[-1]
    size = math.prod(values[place].shape)
    wanted = math.prod(source.shape) if api.startswith("masked") else (source.shape or (None,))[0]
    return None if wanted is None or wanted == 1 else min(size, wanted)


def _integers(
    value: TensorValue, dtype: torch.dtype, api: str, generator: torch.Generator
) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    low, high = (
        (int(value.min), int(value.max))
        if _range_of(value) is not None and value.min is not None and value.max is not None
        else (0, 0)
    )
    if api in _CLASSES:
        # A negative class is one to be left out; the range between is no class at all.
        low = max(low, 0)
    low, high = max(low, limits.min), min(max(high, low), limits.max)
    size, room = math.prod(value.shape), high - low + 1
    if api in _UNIQUE and 0 < size <= room <= 1 << 24:
        found = torch.randperm(room, generator=generator)[:size] + low
    elif room > (1 << 62):
        found = torch.randint(-(1 << 62), 1 << 62, (size,), generator=generator)
    else:
        found = torch.randint(low, high + 1, (size,), generator=generator)
        # The ends of a range are where mistakes are.
        if size >= 2 and api not in _UNIQUE:
            found[0], found[-1] = low, high
    return found.to(dtype).reshape(value.shape)


# --- floats ------------------------------------------------------------------------------------


def _floats(
    value: TensorValue, dtype: torch.dtype, api: str, place: int, generator: torch.Generator
) -> torch.Tensor:
    if dtype.is_complex:
        return _complex_numbers(value, dtype, generator)
    mask = _float_mask(value, generator)
    if mask is not None:
        return mask.to(dtype)
    bounds = _range_of(value)
    if bounds is None:
        found = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    else:
        low, high = bounds
        found = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        found = found * (high - low) + low
    found = _with_property(found, api, place)
    result = found.to(dtype)
    if bounds is not None and result.is_floating_point() and dtype.itemsize > 1:
        # Rounding must not lead out of the range, where a logarithm may end.
        result = result.clamp(*bounds) if api not in _POSITIVE_DEFINITE | _REGULAR else result
    return result


def _float_mask(value: TensorValue, generator: torch.Generator) -> torch.Tensor | None:
    """Return a tensor of two values if that is what was recorded: 0 and very low, or 0 and 1."""
    low, high = value.min, value.max
    if low is None or high is None or not value.shape:
        return None
    if high == 0 and low <= _MASKED:
        share = 0.5
        if math.isfinite(low) and value.mean is not None and math.isfinite(value.mean):
            share = min(max(value.mean / low, 0.0), 1.0)
        hidden = torch.rand(value.shape, generator=generator) < share
        # A row that is hidden as a whole has no softmax.
        hidden[..., 0] = False
        return torch.where(hidden, torch.tensor(float(low), dtype=torch.float64), 0.0)
    if (low, high) != (0, 1) or value.mean is None or value.norm is None:
        return None
    total = value.mean * math.prod(value.shape)
    # Only of zeros and ones is the sum of squares the sum.
    if not math.isclose(total, value.norm**2, rel_tol=1e-3, abs_tol=1e-3):
        return None
    return (torch.rand(value.shape, generator=generator) < value.mean).double()


def _complex_numbers(
    value: TensorValue, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    # What was recorded of complex numbers are their moduli.
    low, high = _range_of(value) or (0.0, 1.0)
    size = torch.rand(value.shape, generator=generator, dtype=torch.float64) * (high - low) + low
    angle = torch.rand(value.shape, generator=generator, dtype=torch.float64) * (2 * math.pi)
    return torch.polar(size, angle).to(dtype)


def _with_property(tensor: torch.Tensor, api: str, place: int) -> torch.Tensor:
    if api in _SORTED and place == (0 if api == "searchsorted" else 1) and tensor.dim():
        return tensor.sort().values
    if api == "cross_entropy" and place == 1 and tensor.dim() > 1:
        # A target of floats is a distribution over the classes.
        return tensor.abs() / tensor.abs().sum(1, keepdim=True).clamp_min(1e-12)
    if place or tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or not tensor.numel():
        return tensor
    if api in _SYMMETRIC:
        return (tensor + tensor.mT) / 2
    identity = torch.eye(tensor.shape[-1], dtype=tensor.dtype)
    if api in _POSITIVE_DEFINITE:
        return tensor @ tensor.mT / tensor.shape[-1] + identity * float(tensor.abs().max() + 1e-3)
    if api in _REGULAR:
        return tensor + identity * float(tensor.abs().max()) * math.sqrt(tensor.shape[-1])
    return tensor
