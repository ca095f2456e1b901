"""What is special about some functions: in place, random, uninitialised, without one answer.

A function that is not named here is an ordinary one. Whether a call drew random numbers is seen
while it runs; the names here say what cannot be seen.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from tensorprobe.names import UNINITIALISED

__all__ = [
    "ADDED_IN_PLACE",
    "CASTS",
    "COARSE_IN_HALVES",
    "PARTLY_IN_HALVES",
    "STEPWISE_IN_HALVES",
    "SUMMED_IN_HALVES",
    "UNINITIALISED",
    "is_dropout",
    "is_in_place",
    "needs_recorded_dtype",
    "undetermined_outputs",
]

CASTS = frozenset(
    ("bfloat16", "bool", "byte", "char", "double", "float", "half", "int", "long", "short", "to",
     "type", "type_as", "_to_copy", "cdouble", "cfloat", "chalf")
)  # fmt: skip

# They find their places in the recorded dtype: a coordinate of 100 is 0.5 off in bfloat16.
COARSE_IN_HALVES = frozenset(
    ("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "affine_grid",
     "_grid_sampler_2d_cpu_fallback", "grid_sampler_2d_backward", "grid_sampler_3d_backward")
)  # fmt: skip

# They round to the recorded dtype between their steps, and some of them jump.
STEPWISE_IN_HALVES = COARSE_IN_HALVES | frozenset(
    ("__floordiv__", "__mod__", "__rfloordiv__", "_trilinear", "bilinear", "div", "div_", "divide",
     "floor_divide", "fmod", "glu", "remainder")
)  # fmt: skip

# Kernels that read halves and compute partly in them, though some of their results are float32.
PARTLY_IN_HALVES = frozenset(
    ("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward",
     "nll_loss_forward", "nll_loss2d_forward",
     "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
)  # fmt: skip

# Losses that the CPU adds up in the dtype of their inputs, however narrow. For inputs that are
# alike it errs alike.
SUMMED_IN_HALVES = frozenset(
    ("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
)  # fmt: skip

# They add up in the memory of their result, and so in its dtype: what a large sum swallows is lost,
# in whatever order an accelerator's threads come.
ADDED_IN_PLACE = frozenset(
    ("scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_add", "index_add_",
     "index_put", "index_put_", "_index_put_impl_", "put", "put_")
)  # fmt: skip

# Which results are one of many right ones: vectors may turn, and so do their gradients; eigenvalues
# of what is not symmetric come in any order; what a kernel hands on to its own backward is as it
# needs it.
_UNDETERMINED: dict[str, tuple[int, ...]] = {
    "svd": (0, 2),
    "linalg.svd": (0, 2),
    "linalg.eigh": (1,),
    "linalg.eig": (0, 1),
    "linalg.eigvals": (0,),
    "_linalg_svd": (0, 2),
    "_linalg_eigh": (1,),
    "linalg_svd": (0, 2),
    "linalg_eigh": (1,),
    "linalg_eig": (0, 1),
    "linalg_eigvals": (0,),
    "_linalg_eigvals": (0,),
    "_linalg_det": (1, 2),
    "_linalg_slogdet": (2, 3),
    "_linalg_solve_ex": (1, 2),
    "_embedding_bag": (1, 2, 3),
    "_embedding_bag_forward_only": (1, 2, 3),
}

# What they return depends on the dtype's own grid or largest number; some of them find the places
# that they look at by arithmetic in that dtype.
_OWN_DTYPE = frozenset(
    ("fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
     "fractional_max_pool3d_with_indices", "nextafter", "nextafter_", "nan_to_num", "nan_to_num_",
     "__dlpack__", "frexp",
     "linalg.matrix_rank", "linalg.pinv", "pinverse", "linalg.lstsq", "linalg_matrix_rank",
     "linalg_pinv", "linalg_lstsq")
)  # fmt: skip

_BITS = frozenset(("view", "view_dtype"))
_LOGITS = frozenset(("logit", "logit_", "logit_backward"))


def is_dropout(api_name: str) -> bool:
    """Whether a function zeroes a share of its input at random.

    >>> is_dropout("dropout2d"), is_dropout("alpha_dropout")
    (True, False)
    """
    return "dropout" in api_name and "alpha" not in api_name


def undetermined_outputs(api_name: str) -> tuple[int, ...]:
    """Return the places of results of which there are many right ones."""
    return _UNDETERMINED.get(api_name.removeprefix("special."), ())


def needs_recorded_dtype(api_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a result means something else in a wider dtype, so that none is to be used."""
    if api_name in _OWN_DTYPE:
        return True
    given = (*args, *kwargs.values())
    if api_name.rpartition(".")[2] in _LOGITS:
        # 1 - 1e-6 is another number in float32.
        return any(isinstance(value, float) for value in given)
    return api_name in _BITS and any(isinstance(value, torch.dtype) for value in given)


def is_in_place(
    function: Callable[..., Any], api_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call writes into a tensor that it was given, as far as its name tells."""
    last = api_name.rpartition(".")[2]
    if last.endswith("_") and not last.endswith("__"):
        return True
    if last == "__setitem__" or (last.startswith("__i") and last not in _NOT_IN_PLACE):
        return True
    if kwargs.get("out") is not None or _is_set(kwargs.get("inplace")):
        return True
    if isinstance(function, torch._ops.OpOverload):
        return bool(function._schema.is_mutable)
    place = _place_of_inplace(function)
    return place is not None and len(args) > place and _is_set(args[place])


def _is_set(flag: object) -> bool:
    # A tensor in its place is neither; the call itself will be refused.
    return isinstance(flag, (bool, int)) and bool(flag)


_NOT_IN_PLACE = frozenset(("__invert__", "__int__", "__index__", "__iter__"))


@cache
def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    if not inspect.isfunction(function):
        return None
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        # A wrapper around a builtin, which has no names.
        return None
    return names.index("inplace") if "inplace" in names else None
