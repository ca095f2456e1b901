"""What of torch is never called because a file says so, and why.

A function is on this list by its last name, or by the arguments that its operator takes. Arguments
come out of a file, so that a path, an address or a state in them would be the file's choice.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

__all__ = ["is_torch_operator", "why_name_is_forbidden", "why_operator_is_forbidden"]

_BY_REASON: dict[str, tuple[str, ...]] = {
    "takes a function": (
        "apply_", "as_sparse_gradcheck", "map_", "map2_", "register_hook",
        "register_post_accumulate_grad_hook",
    ),
    "takes a file or an address": ("from_blob", "_from_blob", "from_file", "frombuffer"),
    "gives away addresses of memory": (
        "__cuda_array_interface__", "__dlpack__", "__dlpack_device__", "_cdata", "_typed_storage",
        "const_data_ptr", "data_ptr", "storage", "storage_type", "untyped_storage",
    ),
    "frees, resizes or replaces memory": (
        "_backward", "_copy_from_and_resize", "_propagate_xla_data", "_resize_output",
        "_resize_output_", "module_load", "record_stream", "resize", "resize_", "resize_as",
        "resize_as_", "resize_as_sparse", "resize_as_sparse_", "set", "set_", "set_data",
        "share_memory_", "sparse_resize", "sparse_resize_", "sparse_resize_and_clear",
        "sparse_resize_and_clear_", "swap_tensors",
    ),
    "looks at memory without a check of its bounds": (
        "_convert_indices_from_coo_to_csr", "_convert_indices_from_csr_to_coo",
        "_ctc_loss_backward",
        "_embedding_bag_backward", "_embedding_bag_dense_backward",
        "_embedding_bag_per_sample_weights_backward", "_embedding_bag_sparse_backward",
        "_nested_view_from_buffer", "_nested_view_from_buffer_copy", "_segment_reduce_backward",
        "_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_initialize_state_",
        "_sobol_engine_scramble_", "_sparse_bsc_tensor_unsafe", "_sparse_bsr_tensor_unsafe",
        "_sparse_compressed_tensor_unsafe", "_sparse_coo_tensor_unsafe",
        "_sparse_csc_tensor_unsafe", "_sparse_csr_tensor_unsafe",
    ),
    "is torch's own scaffolding": (
        "_add_batch_dim", "_foobar", "_fw_primal", "_fw_primal_copy", "_lazy_clone",
        "_make_dep_token",
        "_remove_batch_dim", "_test_ambiguous_defaults", "_test_autograd_multiple_dispatch",
        "_test_autograd_multiple_dispatch_view", "_test_autograd_multiple_dispatch_view_copy",
        "_test_check_tensor", "_test_functorch_fallback", "_test_optional_filled_intlist",
        "_test_optional_floatlist", "_test_optional_intlist", "_test_parallel_materialize",
        "_test_serialization_subcmul", "_test_string_default", "_test_warn_in_autograd",
    ),
    "changes the state of torch": (
        "_cufft_clear_plan_cache", "_cufft_set_plan_cache_max_size", "_set_grad_enabled",
        "backward", "set_default_device", "set_default_dtype", "set_rng_state",
    ),
    "makes Python objects out of a description": (
        "__deepcopy__", "__reduce_ex__", "__setstate__", "_clear_non_serializable_cached_data",
    ),
    "prints": ("_print",),
}  # fmt: skip
_REASONS = {name: reason for reason, names in _BY_REASON.items() for name in names}

# Libraries that torch brings and that do not compute what a model asks for: they move data between
# ranks, measure, or serve torch's compiler.
_OF_TORCH = frozenset(
    ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_quantized", "_test",
     "c10d", "c10d_functional", "debug_mode_ops", "debugprims", "export", "flex_lib", "fsdp",
     "higher_order", "inductor", "inductor_prims", "mkldnn_prepacked", "onednn", "prim", "prims",
     "profiler", "quantization", "rngprims", "sparse", "static_runtime", "symm_mem")
)  # fmt: skip
_PLAIN_TYPE = re.compile(
    r"(?:List\[|Optional\[)*"
    r"(?:Tensor|int|bool|float|complex|number|SymInt|SymFloat|SymBool|Device|Generator|str)\]*"
)
# Texts that choose a way to compute; any other may be a path.
_CHOICES = frozenset(
    ("activation", "algorithm", "api_name", "approximate", "assert_msg", "driver",
     "equation", "indexing", "interpolation", "mode", "norm", "ord", "p", "pad_mode",
     "padding", "padding_mode", "padding_side", "reduce", "reduction", "rounding_mode",
     "side", "UPLO")
)  # fmt: skip


def why_name_is_forbidden(name: str) -> str:
    """Return why nothing of that name is called; blank where something may be.

    >>> why_name_is_forbidden("set_")
    'frees, resizes or replaces memory'
    >>> why_name_is_forbidden("add")
    ''
    """
    return _REASONS.get(name, "")


def is_torch_operator(name: str) -> bool:
    """Whether torch's dispatcher has an operator of the name `library::operator`.

    >>> is_torch_operator("aten::add"), is_torch_operator("aten::manual_seed")
    (True, False)
    """
    return bool(_overloads_of(name))


@cache
def why_operator_is_forbidden(name: str, overload: str | None = None) -> str:
    """Return why an operator is not called, as its schema tells; blank where it may be.

    >>> why_operator_is_forbidden("aten::add")
    ''
    >>> why_operator_is_forbidden("aten::from_file")
    'takes a file or an address'
    >>> why_operator_is_forbidden("c10d::send")
    'belongs to c10d, which torch has for itself'

    Args:
        name: `library::operator`.
        overload: one of its overloads; None for all of them.
    """
    library, _, operator = name.partition("::")
    if reason := why_name_is_forbidden(operator):
        return reason
    if library in _OF_TORCH:
        return f"belongs to {library}, which torch has for itself"
    for each in _overloads_of(name) if overload is None else (overload,):
        schema: Any = torch._C._get_schema(name, each)
        for argument in schema.arguments:
            kind = str(argument.type)
            if not _PLAIN_TYPE.fullmatch(kind):
                return f"takes a {kind}"
            if "str" in kind and argument.name not in _CHOICES:
                return f"takes a text ({argument.name}) that may be a path"
    return ""


def _overloads_of(name: str) -> tuple[str, ...]:
    """Return the overloads that the dispatcher has, the default one by a blank name."""
    if name not in _registry():
        # Modules that were imported since may have added it.
        _registry.cache_clear()
    return _registry().get(name, ())


@cache
def _registry() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        found[name] = (*found.get(name, ()), overload)
    return found
