"""What holds of torch's operations, as data: one list of each fact, for every room.

    operation in EXACT      whether a fact holds of an operation, in any spelling of its name:
                            `add_`, `__iadd__`, `add.Tensor`

An operation that is in none of these lists is an ordinary one: it computes in several steps, each
rounded to the type of its result, returns what follows from its arguments, and writes into nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorprobe.operations.spelling import spellings_of

__all__ = [
    "ABOUT_MEMORY",
    "ADDED_IN_PLACE",
    "ADDING",
    "AVERAGING",
    "BY_STRIDES",
    "CASTING",
    "COARSE_IN_HALVES",
    "CONVOLUTIONS",
    "DROPOUTS",
    "EXACT",
    "EXACT_IF_REAL",
    "EXPONENTIALS",
    "GATES",
    "IN_ANY_ORDER",
    "LOSSES",
    "MANY_STEPS",
    "MATRIX",
    "MOVING",
    "NORMS",
    "OVERWRITING",
    "OWN_DTYPE",
    "PARAMETER_PLACES",
    "PARTLY_IN_HALVES",
    "PLACES_ALONE",
    "PRODUCTS",
    "RANDOM",
    "RECEIVING",
    "ROUNDED_ONCE",
    "ROUNDING_ARGUMENTS",
    "SCALING",
    "STEPWISE_IN_HALVES",
    "SUMMED_IN_HALVES",
    "UNINITIALISED",
    "WITH_PLACES",
    "WITH_WORKSPACE",
    "WRITES_UNSEEN",
    "Fact",
    "facts_of",
    "undetermined_outputs",
]


class Fact:
    """The operations of which something holds, asked of any spelling of their names.

    An operation is listed by its plainest name, `add`; listed as `add_` the fact holds of that
    spelling alone.

    >>> "__iadd__" in Fact("add sub"), "add_.Tensor" in Fact("add sub"), "add" in Fact("add_")
    (True, True, False)
    """

    def __init__(self, names: str | Iterable[str], *, ending: str = "") -> None:
        self._names = frozenset(names.split() if isinstance(names, str) else names)
        # What a vendor's kernel is called that does the same: `npu_batch_norm`.
        self._ending = ending

    def __contains__(self, operation: str) -> bool:
        spellings = spellings_of(operation)
        if not self._names.isdisjoint(spellings):
            return True
        return bool(self._ending) and any(name.endswith(self._ending) for name in spellings)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __or__(self, other: Fact) -> Fact:
        return Fact(self._names | other._names)

    def __sub__(self, other: Fact) -> Fact:
        return Fact(self._names - other._names)


def facts_of(operation: str) -> frozenset[str]:
    """Return the names of all facts that hold of an operation.

    >>> sorted(facts_of("__imul__"))
    ['PRODUCTS', 'ROUNDED_ONCE', 'SCALING']
    """
    return frozenset(
        name
        for name, fact in globals().items()
        if isinstance(fact, Fact) and not name.startswith("_") and operation in fact
    )


# --- what is exact -------------------------------------------------------------------------------

_MOVED = Fact(
    "T _reshape_alias _unsafe_view alias alias_copy as_strided as_strided_copy as_strided_scatter "
    "atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat chunk clone column_stack "
    "concat concatenate constant_pad_nd contiguous copy cpu cuda detach diag diag_embed diagonal "
    "dsplit dstack expand expand_as flatten flip fliplr flipud H hsplit hstack lift_fresh mH mT "
    "meshgrid movedim moveaxis narrow npu numpy pad permute pin_memory ravel repeat "
    "repeat_interleave requires_grad_ reshape reshape_as roll rot90 select select_backward "
    "slice_backward split split_with_sizes squeeze stack swapaxes swapdims t tensor_split tile "
    "transpose tril triu unbind unflatten unfold unsqueeze view view_as vsplit vstack "
    "pixel_shuffle pixel_unshuffle channel_shuffle"
)
_PICKED = Fact(
    "__getitem__ argmax argmin argsort clamp clamp_max clamp_min clip embedding gather "
    "hardtanh index index_copy index_fill index_select isin kthvalue masked_fill "
    "masked_select max max_pool1d max_pool2d max_pool2d_with_indices max_pool3d "
    "max_pool3d_with_indices maximum median min minimum mode nonzero "
    "one_hot relu relu6 scatter searchsorted bucketize sort take take_along_dim threshold "
    "threshold_backward topk unique where adaptive_max_pool1d adaptive_max_pool2d amax amin "
    "aminmax cummax cummin"
)
CASTING = Fact(
    "_to_copy bfloat16 bool byte cdouble cfloat chalf char double float half int long short to "
    "type type_as"
)
"""Operations that return the same numbers in another dtype, each rounded once."""

_SIGNS = Fact("abs neg negative positive ceil floor round trunc frac sign sgn signbit")
_COMPARED = Fact(
    "eq ne lt le gt ge equal isfinite isinf isnan logical_and logical_not logical_or logical_xor "
    "all any bitwise_and bitwise_or bitwise_xor bitwise_not allclose "
    "isclose"
)
_MADE = Fact(
    "arange eye fill full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero "
    "zeros zeros_like"
)

EXACT_IF_REAL = Fact("abs sgn")
"""Exact operations that compute a root where their input is complex."""

EXACT = _MOVED | _PICKED | CASTING | _SIGNS | _COMPARED | _MADE
"""Operations whose results are copies, choices or comparisons: no rounding excuses a difference.

What a call is given may have it compute all the same: ask `calls.is_exact_call`.
"""

ROUNDING_ARGUMENTS = ("reduce", "decimals")
"""Keywords with which an exact operation computes: `scatter(reduce="add")`, `round(decimals=2)`."""


# --- what is written -----------------------------------------------------------------------------

UNINITIALISED = Fact(
    "empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided "
    "resize_ resize_as_"
)
"""Operations whose result is memory as it was found."""

OVERWRITING = Fact(
    "bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_ normal_ random_ set_ "
    "uniform_ zero_"
)
"""Operations that write over their first argument without a look at what was there."""

WRITES_UNSEEN = Fact(
    # Running statistics.
    "batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm "
    "_batch_norm_impl_index _batch_norm_with_update _native_batch_norm_legit "
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats "
    # What observes activations, to quantize them.
    "fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper "
    # Gradients, by a GradScaler.
    "_amp_foreach_non_finite_check_and_unscale_ "
    # Parameters.
    "_fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_sgd_ "
    # Element by element, by a function of Python.
    "apply_ map_ map2_",
    ending="batch_norm",
)
"""Operations that write into tensors without raising their version.

What is known of a tensor holds until its version is another one, so after these nothing is known.
"""

ABOUT_MEMORY = Fact(
    "_pin_memory is_pinned record_stream set_ set_data _resize_output_ _efficientzerotensor lift "
    "_local_scalar_dense"
)
"""Operations that are about memory, not about the numbers in it."""

WITH_WORKSPACE = Fact(
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward miopen_rnn "
    "miopen_rnn_backward"
)
"""Operations that hand on memory of their own kernel, which no other one can read."""

BY_STRIDES = Fact("as_strided as_strided_copy as_strided_scatter _reshape_alias")
"""Operations whose strides count from the beginning of the memory, of which a copy has a part."""

# --- what is drawn, and what has no one answer ---------------------------------------------------

DROPOUTS = Fact(
    "_fused_dropout dropout dropout1d dropout2d dropout3d feature_dropout native_dropout "
    "npu_dropout _npu_dropout npu_dropout_with_byte_mask dropout_with_byte_mask"
)
"""Operations that zero a share of their input at random, and scale what is left."""

RANDOM = DROPOUTS | Fact(
    "alpha_dropout bernoulli cauchy_ exponential_ feature_alpha_dropout geometric_ gumbel_softmax "
    "log_normal_ multinomial normal poisson rand rand_like randint randint_like randn randn_like "
    "random_ randperm rrelu uniform_"
)
"""Operations that draw random numbers; the state they draw from is not recorded."""

IN_ANY_ORDER = Fact(
    "bincount conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
    "convolution_backward ctc_loss cumsum embedding embedding_bag embedding_dense_backward gather "
    "grid_sample grid_sampler_2d grid_sampler_3d histc index_add index_copy index_put interpolate "
    "kthvalue max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d "
    "fractional_max_pool3d median nanmedian put repeat_interleave scatter scatter_add "
    "scatter_reduce upsample upsample_bicubic2d upsample_bilinear2d upsample_linear1d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d"
)
"""Operations that accelerators add up in an order of their own, forward or backward."""

WITH_PLACES = Fact(
    "topk sort max min median kthvalue mode cummax cummin max_pool1d max_pool2d max_pool3d"
)
"""Operations that return values and their places; among equal values any place is right."""

PLACES_ALONE = Fact("argmax argmin argsort")
"""Operations that return places alone."""

# Vectors may turn, and so do their gradients; eigenvalues of what is not symmetric come in any
# order; what a kernel hands on to its own backward is as it needs it.
_UNDETERMINED: dict[str, tuple[int, ...]] = {
    "svd": (0, 2),
    "linalg_svd": (0, 2),
    "_linalg_svd": (0, 2),
    "_linalg_eigh": (1,),
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


def undetermined_outputs(operation: str) -> tuple[int, ...]:
    """Return the places of the results of an operation of which there are many right ones.

    >>> undetermined_outputs("linalg.svd"), undetermined_outputs("linalg_eigh.eigvals")
    ((0, 2), (1,))
    """
    found = (_UNDETERMINED[name] for name in spellings_of(operation) if name in _UNDETERMINED)
    return next(found, ())


# --- how it is rounded ---------------------------------------------------------------------------

MATRIX = Fact(
    "linear matmul mm bmm addmm addbmm baddbmm addmv mv dot vdot inner "
    "einsum tensordot chain_matmul multi_dot bilinear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d scaled_dot_product_attention "
    "multi_head_attention_forward lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell affine_grid cdist cov corrcoef matrix_power"
)
"""Operations made of matrix products: devices may run them on operands of fewer bits."""

# A transposed convolution adds overlapping windows after its product, in its own type; a product of
# more than two tensors rounds what it makes of the first two.
_FUSED_MATRIX = Fact(
    "scaled_dot_product_attention multi_head_attention_forward lstm gru rnn_tanh rnn_relu "
    "lstm_cell gru_cell conv_transpose1d conv_transpose2d conv_transpose3d einsum bilinear "
    "multi_dot chain_matmul affine_grid cdist cov corrcoef matrix_power rnn_tanh_cell rnn_relu_cell"
)

MANY_STEPS = Fact("multi_head_attention_forward lstm gru rnn_tanh rnn_relu")
"""Functions that are as many steps as a module, each of which may cancel."""

ROUNDED_ONCE = (MATRIX - _FUSED_MATRIX) | Fact(
    "add sub rsub mul multiply div divide true_divide rtrue_divide "
    "sqrt rsqrt reciprocal exp log sin cos tanh sigmoid erf sum mean avg_pool1d avg_pool2d "
    "adaptive_avg_pool1d adaptive_avg_pool2d outer square relu leaky_relu"
)
"""Operations that every sound kernel computes in float32 or better and rounds once at the end."""

CONVOLUTIONS = Fact("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
"""Products whose gradients, too, may be added up window by window."""

PRODUCTS = MATRIX | Fact("mul multiply outer")
"""Operations that multiply tensors."""

SCALING = Fact("mul multiply div divide true_divide")
"""Operations that may multiply a tensor by a number."""

AVERAGING = Fact("mean sum")
"""Operations whose gradients are spread over what was summed."""

ADDING = Fact("add sub rsub")
"""Operations that add what they are given, and hand gradients on as they are."""

MOVING = Fact(
    "__getitem__ argmax argmin argsort embedding flip fliplr flipud gather index_copy "
    "index_put index_select masked_scatter masked_select max_pool1d max_pool2d "
    "max_pool3d nonzero one_hot roll rot90 scatter sort take take_along_dim topk "
    "where"
)
"""Operations that pick values or put them into other places."""

NORMS = Fact("layer_norm group_norm batch_norm instance_norm rms_norm local_response_norm")
"""Operations that divide by how far their input spreads."""

EXPONENTIALS = Fact("exp softmax logsumexp expm1 exp2")
"""Operations that turn a change into a relative change."""

GATES = Fact(
    "relu relu6 leaky_relu prelu rrelu hardtanh hardswish hardsigmoid threshold clamp "
    "clamp_min clamp_max clip max min maximum minimum amax amin max_pool1d max_pool2d max_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d abs l1_loss hinge_embedding_loss median "
    "kthvalue topk sort hardshrink softshrink"
)
"""Operations with a kink: which way a gradient goes hangs on which side of it an element lies."""

LOSSES = Fact(
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div ctc_loss"
)
"""Operations that compare with a target, which is data."""


PARAMETER_PLACES = {
    **dict.fromkeys(CONVOLUTIONS | Fact("linear"), ("input.1", "input.2")),
    "layer_norm": ("input.2", "input.3"),
    "group_norm": ("input.2", "input.3"),
    "rms_norm": ("input.2",),
    "batch_norm": ("input.1", "input.2", "input.3", "input.4"),
    "instance_norm": ("input.1", "input.2", "input.3", "input.4"),
    "embedding": ("input.1",),
    "embedding_bag": ("input.1",),
    "prelu": ("input.1",),
}
"""Where operations take what a model has learnt, which no noise of the run has touched."""

# --- how halves are computed in ------------------------------------------------------------------

COARSE_IN_HALVES = Fact(
    "grid_sample grid_sampler grid_sampler_2d grid_sampler_3d affine_grid "
    "_grid_sampler_2d_cpu_fallback grid_sampler_2d_backward grid_sampler_3d_backward"
)
"""Operations that find places in the recorded dtype: a coordinate of 100 is 0.5 off in bfloat16."""

STEPWISE_IN_HALVES = COARSE_IN_HALVES | Fact(
    "_trilinear bilinear div divide floor_divide fmod glu remainder rfloor_divide rremainder"
)
"""Operations that round to the recorded dtype between their steps, and some of which jump."""

PARTLY_IN_HALVES = Fact(
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward "
    "nll_loss_forward nll_loss2d_forward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"
)
"""Kernels that read halves and compute partly in them, though some of their results are float32."""

SUMMED_IN_HALVES = Fact("cross_entropy cross_entropy_loss nll_loss nll_loss_nd nll_loss2d")
"""Losses that the CPU adds up in the dtype of their inputs: for inputs that are alike, alike."""

ADDED_IN_PLACE = Fact("scatter_add scatter_reduce index_add index_put _index_put_impl_ put")
"""Operations that add up in the memory of their result, and so in its dtype.

What a large sum swallows is lost, in whatever order an accelerator's threads come.
"""

OWN_DTYPE = Fact(
    "fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d "
    "fractional_max_pool3d_with_indices nextafter nan_to_num __dlpack__ frexp "
    "linalg_matrix_rank linalg_pinv pinverse linalg_lstsq"
)
"""Operations that go by a dtype's own grid, its largest number or its epsilon.

Some of them find the places that they look at by arithmetic in that dtype.
"""

RECEIVING: dict[str, tuple[str, ...]] = {
    "recv": ("input.0", "kwargs.tensor"),
    "irecv": ("input.0", "kwargs.tensor"),
    "scatter": ("input.0", "kwargs.tensor"),
    "gather": ("input.1", "kwargs.gather_list"),
    "all_gather": ("input.0", "kwargs.tensor_list"),
    "all_gather_coalesced": ("input.0", "kwargs.output_tensor_lists"),
    "all_gather_into_tensor": ("input.0", "kwargs.output_tensor"),
    "all_gather_single": ("input.0", "kwargs.output_tensor"),
    "_all_gather_base": ("input.0", "kwargs.output_tensor"),
    "reduce_scatter": ("input.0", "kwargs.output"),
    "reduce_scatter_tensor": ("input.0", "kwargs.output"),
    "reduce_scatter_single": ("input.0", "kwargs.output"),
    "_reduce_scatter_base": ("input.0", "kwargs.output"),
    "all_to_all": ("input.0", "kwargs.output_tensor_list"),
    "all_to_all_single": ("input.0", "kwargs.output"),
}
"""Where collectives are handed memory that they only write into: the results of other ranks."""
