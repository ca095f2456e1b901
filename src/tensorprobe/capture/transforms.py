"""Look below the transforms of torch.func: what `vmap`, `grad` and `jvp` wrap is a usual tensor.

Inside a transform every operator, also on a tensor that is not wrapped, returns wrapped ones. To
read a tensor we step out: the keys are taken away by which torch finds the transforms, and put
back. The transforms themselves, and what they know of their tensors, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch._C import _functorch

__all__ = ["below_vmap", "is_transforming", "is_wrapped", "unwrap", "without_transforms"]

# Asked for every call and every new tensor, so without a step of Python.
is_transforming: Callable[[], bool] = partial(
    torch._C._dispatch_tls_is_dispatch_key_included,
    torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode,
)
"""Returns whether what this thread computes goes through a transform of torch.func."""


@contextmanager
def without_transforms() -> Iterator[None]:
    """Let operators of this thread pass by the transforms; only tensors that are not wrapped."""
    is_inside = is_transforming()
    if is_inside:
        _functorch._set_dynamic_layer_keys_included(False)
    try:
        yield
    finally:
        if is_inside:
            _functorch._set_dynamic_layer_keys_included(True)


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.func, or a batch of gradients."""
    return _functorch.is_functorch_wrapped_tensor(tensor) or _is_batch_of_gradients(tensor)


# By its name: Python knows no number for it.
_OLD_BATCH = re.compile(r"\bBatched\b")
# So deep may the older vmap be in itself.
_OLD_LEVELS = range(1, 65)


def _is_batch_of_gradients(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a batch of the older vmap, which is left in `is_grads_batched`."""
    return _OLD_BATCH.search(str(torch._C._dispatch_keys(tensor))) is not None


def _unwrap_gradients(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what such a batch holds, its last dimension of a batch first."""
    inner = tensor
    for level in _OLD_LEVELS:
        if not _is_batch_of_gradients(inner):
            return inner
        # Where it is no batch of this level it would become one of this size.
        removed: torch.Tensor = torch._remove_batch_dim(inner, level, 0, 0)
        if removed.shape[0]:
            inner = removed
    return None


def unwrap(tensor: torch.Tensor) -> tuple[str, torch.Tensor | None]:
    """Return what a tensor of torch.func is, in words, and the tensor that its numbers are in.

    The dimensions that `vmap` takes apart are still there: the words say which, outermost wrapper
    first. None in place of a tensor that has writes of its own to catch up with (`functionalize`).
    """
    if _is_batch_of_gradients(tensor):
        sizes = ", ".join(map(str, tensor.shape))
        return f"torch.func: BatchedTensor [{sizes}] (batch in dim 0)", _unwrap_gradients(tensor)
    words: list[str] = []
    inner = tensor
    while _functorch.is_functorch_wrapped_tensor(inner):
        if _functorch.is_batchedtensor(inner):
            sizes = ", ".join(map(str, inner.shape))
            dim = _functorch.maybe_get_bdim(inner)
            words.append(f"BatchedTensor [{sizes}] (batch in dim {dim})")
        elif _functorch.is_gradtrackingtensor(inner):
            words.append("GradTrackingTensor")
        else:
            words.append("FunctionalTensor")
            return f"torch.func: {' around '.join(words)}", None
        inner = _functorch.get_unwrapped(inner)
    return f"torch.func: {' around '.join(words)}", inner


def below_vmap(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor whose place in the graph is that of one inside `vmap`, which has none."""
    while not tensor.requires_grad and _functorch.is_batchedtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor
