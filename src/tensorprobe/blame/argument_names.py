"""Name the arguments that calls give by their position: `input.4` of a layer_norm is its eps."""

from __future__ import annotations

from tensorprobe.operations.spelling import operation_of

__all__ = ["name_argument"]

_CONVOLUTION = "input weight bias stride padding dilation groups"
_TRANSPOSED = "input weight bias stride padding output_padding groups dilation"
_POOL = "input kernel_size stride padding"
_NAMES = {
    "adaptive_avg_pool2d": "input output_size",
    "alpha_dropout": "input p training inplace",
    "avg_pool1d": f"{_POOL} ceil_mode count_include_pad",
    "avg_pool2d": f"{_POOL} ceil_mode count_include_pad divisor_override",
    "batch_norm": "input running_mean running_var weight bias training momentum eps",
    "binary_cross_entropy_with_logits": "input target weight size_average reduce reduction",
    "clamp": "input min max",
    "conv1d": _CONVOLUTION,
    "conv2d": _CONVOLUTION,
    "conv3d": _CONVOLUTION,
    "conv_transpose1d": _TRANSPOSED,
    "conv_transpose2d": _TRANSPOSED,
    "cross_entropy": (
        "input target weight size_average ignore_index reduce reduction label_smoothing"
    ),
    "dropout": "input p training inplace",
    "elu": "input alpha inplace",
    "embedding": "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    "group_norm": "input num_groups weight bias eps",
    "hardtanh": "input min_val max_val inplace",
    "instance_norm": "input running_mean running_var weight bias use_input_stats momentum eps",
    "interpolate": "input size scale_factor mode align_corners",
    "layer_norm": "input normalized_shape weight bias eps",
    "leaky_relu": "input negative_slope inplace",
    "linear": "input weight bias",
    "log_softmax": "input dim",
    "masked_fill": "input mask value",
    "max_pool1d": f"{_POOL} dilation ceil_mode return_indices",
    "max_pool2d": f"{_POOL} dilation ceil_mode return_indices",
    "mse_loss": "input target size_average reduce reduction",
    "normalize": "input p dim eps",
    "pad": "input pad mode value",
    "rms_norm": "input normalized_shape weight eps",
    "scaled_dot_product_attention": "query key value attn_mask dropout_p is_causal",
    "smooth_l1_loss": "input target size_average reduce reduction beta",
    "softmax": "input dim",
    "softplus": "input beta threshold",
    "transpose": "input dim0 dim1",
}  # fmt: skip


# Functions of torch itself, and methods, may take theirs in another order; these do not.
_ALIKE = frozenset(
    ("clamp", "conv1d", "conv2d", "conv3d", "log_softmax", "masked_fill", "softmax", "transpose")
)


def name_argument(call: str, place: str) -> str:
    """Return a place with the argument's name, where it is known.

    >>> name_argument("Functional.layer_norm.3.forward", "input.4")
    'input.4 (eps)'
    >>> name_argument("Tensor.view.0.forward", "input.1")
    'input.1'
    """
    operation = operation_of(call)
    if call.startswith("Module.") or not (call.startswith("Functional.") or operation in _ALIKE):
        return place
    places = {
        f"input.{index}": name for index, name in enumerate(_NAMES.get(operation, "").split())
    }
    return f"{place} ({places[place]})" if place in places else place
