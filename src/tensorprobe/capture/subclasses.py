"""Tensors that are none of the usual: what they are, and the numbers of the part that can be read.

    DTensor             this rank's part; its placements, mesh and whole shape stand in `form`
    AsyncCollectiveTensor   its data once it has been waited for; we never wait for it
    nested, sparse      the values that they hold
    quantized           the values that its integers stand for
    uint4, float4, …    its bytes
    of torch.func       the tensor that is wrapped; dimensions of vmap stand in `form`
    a class of the user's   its own memory, or the tensors that it says it is made of
    meta, fake, and any other   type and shape

No code of a class is run but `__tensor_flatten__`, which is made for this: neither its
`__torch_function__` nor its `__torch_dispatch__` notices that somebody looked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorprobe.capture.pending_tensors import PendingPart, PendingTensor
from tensorprobe.capture.transforms import below_vmap, is_wrapped, unwrap
from tensorprobe.records import DictValue, TensorValue, UnknownValue
from tensorprobe.summary.host import is_plain
from tensorprobe.system.interrupts import is_raised_by_handler

__all__ = ["OnPart", "describe_unusual"]

OnPart = Callable[[torch.Tensor, tuple[str, ...]], Any]
"""Describes a plain tensor that is a part of another one."""

_DEEPEST = 5


def describe_unusual(
    tensor: torch.Tensor, on_part: OnPart, path: tuple[str, ...], around: str = ""
) -> Any:
    """Describe a tensor that is not plain.

    Args:
        tensor: the tensor; nothing of it is changed, and nothing is waited for.
        on_part: describes the part whose numbers stand for it.
        path: where it stands in its value.
        around: the form of the tensor that it is a part of.
    """
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            requires_grad = bool(below_vmap(tensor).requires_grad)
            form, part = _form_of(tensor)
            form = f"{around}: {form}" if around else form
            if part is None:
                return _without_numbers(tensor, form)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as err:
            if is_raised_by_handler(err):
                raise
            # Such as a parameter without a shape, or a class that does not answer.
            return UnknownValue(type(tensor).__name__, "a tensor that cannot be looked at")
        if isinstance(part, torch.Tensor):
            return _describe_part(part, on_part, path, form, requires_grad=requires_grad)
        return DictValue(
            tuple(
                (
                    key,
                    _describe_part(inner, on_part, (*path, key), form, requires_grad=requires_grad),
                )
                for key, inner in part.items()
            )
        )


def _describe_part(
    part: torch.Tensor, on_part: OnPart, path: tuple[str, ...], form: str, *, requires_grad: bool
) -> Any:
    if is_plain(part):
        drafted = on_part(part, path)
        if isinstance(drafted, PendingTensor):
            return PendingPart(drafted, requires_grad=requires_grad, form=form)
        return drafted
    if form.count(":") >= _DEEPEST:
        return _without_numbers(part, form)
    return describe_unusual(part, on_part, path, form)


def _form_of(
    tensor: torch.Tensor,
) -> tuple[str, torch.Tensor | dict[str, torch.Tensor] | None]:
    """Return what a tensor is, in words, and what of it can be read."""
    kind = type(tensor)
    name = kind.__name__
    if name == "DTensor" and hasattr(tensor, "_local_tensor"):
        return _form_of_distributed(tensor), tensor._local_tensor
    if name == "AsyncCollectiveTensor" and hasattr(tensor, "elem"):
        if getattr(tensor, "completed", False):
            return name, tensor.elem
        return f"{name}, not complete when it was seen", None
    if name == "FakeTensor":
        return name, None
    if is_wrapped(tensor):
        return unwrap(tensor)
    if tensor.is_nested:
        jagged = getattr(tensor, "_values", None)
        is_jagged = isinstance(jagged, torch.Tensor)
        shape = _shape_text(tensor) if is_jagged else _nested_shape_text(tensor)
        return f"nested {shape}", jagged if is_jagged else tensor.detach().values()
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return name, _inside(tensor)
    if tensor.device.type == "meta":
        return "meta", None
    layout = str(tensor.layout).removeprefix("torch.")
    if layout == "sparse_coo":
        return f"{layout} {_shape_text(tensor)}", tensor.detach()._values()
    if layout.startswith("sparse_"):
        return f"{layout} {_shape_text(tensor)}", tensor.detach().values()
    if layout != "strided":
        return layout, None
    if tensor.numel() and not tensor.data_ptr():
        # It was given back.
        return "without memory", None
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_quantized:
        return f"quantized {dtype}", tensor.detach().dequantize()
    # torch does not compute with such a type, and what it holds is known to those who do.
    return f"bytes of {dtype}", tensor.detach().view(torch.uint8)


def _form_of_distributed(tensor: Any) -> str:
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    sizes = tuple(mesh.mesh.shape)
    dims = ", ".join(
        f"{name}={size}" if name else str(size) for name, size in zip(names, sizes, strict=True)
    )
    placements = ", ".join(map(repr, tensor.placements))
    return f"DTensor {_shape_text(tensor)} ({placements}) on mesh ({dims})"


def _inside(tensor: Any) -> torch.Tensor | dict[str, torch.Tensor] | None:
    """Return the memory of a subclass, or the tensors that it consists of."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        parts = {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}
        if len(parts) == 1:
            only: torch.Tensor = next(iter(parts.values()))
            return only
        return parts or None
    with torch._C._DisableTorchDispatch():
        plain: torch.Tensor = tensor.as_subclass(torch.Tensor).detach()
        try:
            has_memory = plain.untyped_storage().data_ptr() != 0
        except RuntimeError:
            # It only looks like a tensor; where its numbers are is known to its class alone.
            return None
    return plain if has_memory else None


def _without_numbers(tensor: torch.Tensor, form: str) -> TensorValue | UnknownValue:
    sizes = tuple(tensor.shape) if not _is_strided_nested(tensor) else ()
    if not all(type(size) is int for size in sizes) or _is_strided_nested(tensor):
        return UnknownValue(type(tensor).__name__, form)
    return TensorValue(
        str(tensor.dtype), sizes, requires_grad=bool(tensor.requires_grad), form=form
    )


def _is_strided_nested(tensor: torch.Tensor) -> bool:
    return tensor.is_nested and tensor.layout is torch.strided


def _shape_text(tensor: torch.Tensor) -> str:
    # A size that differs from row to row has a name that differs from run to run.
    sizes = [str(size) if type(size) is int else "*" for size in tensor.shape]
    return f"[{', '.join(sizes)}]"


def _nested_shape_text(tensor: torch.Tensor) -> str:
    rows = tensor._nested_tensor_size().tolist()
    columns = [set(column) for column in zip(*rows, strict=True)]
    sizes = [str(next(iter(column))) if len(column) == 1 else "*" for column in columns]
    return f"[{', '.join((str(len(rows)), *sizes))}]"
