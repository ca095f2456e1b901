"""What is known of operations, as data: which are exact, which round once, which sum, which draw.

An operation that is not in any of these sets is taken for one that computes in several steps, each
rounded to the type of its result: the widest tolerance that floating-point arithmetic excuses.
"""

from __future__ import annotations

from functools import lru_cache

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, ModuleCall, ParameterGradients, parse_call

__all__ = [
    "AVERAGING",
    "CONVOLUTIONS",
    "EXACT",
    "EXPONENTIALS",
    "GATES",
    "LOSSES",
    "MANY_STEPS",
    "MATRIX",
    "NORMS",
    "PARAMETER_PLACES",
    "PLACES_ALONE",
    "RANDOM",
    "ROUNDED_ONCE",
    "SCALING",
    "WITH_PLACES",
    "is_compound",
    "operation_of",
]


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_MOVING = (
    "T alias as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat chunk "
    "clone column_stack concat concatenate contiguous cpu cuda detach detach_ diag diag_embed "
    "diagonal dsplit dstack expand expand_as flatten flip fliplr flipud H hsplit hstack mH mT "
    "meshgrid movedim moveaxis narrow npu numpy pad permute pin_memory ravel repeat "
    "repeat_interleave requires_grad_ reshape reshape_as roll rot90 select split split_with_sizes "
    "squeeze squeeze_ stack swapaxes swapdims t t_ tensor_split tile transpose transpose_ tril "
    "tril_ triu triu_ unbind unflatten unfold unsqueeze unsqueeze_ view view_as vsplit vstack "
    "pixel_shuffle pixel_unshuffle channel_shuffle"
)
_PICKING = (
    "__getitem__ argmax argmin argsort clamp clamp_ clamp_max clamp_min clip embedding gather "
    "hardtanh index_copy index_fill index_select isin kthvalue masked_fill masked_fill_ "
    "masked_select max max_pool1d max_pool2d max_pool3d maximum median min minimum mode nonzero "
    "one_hot relu relu6 relu_ scatter searchsorted bucketize sort take take_along_dim threshold "
    "topk unique where adaptive_max_pool1d adaptive_max_pool2d amax amin aminmax cummax cummin"
)
_CASTING = (
    "bfloat16 bool byte char double float half int long short to type type_as abs __abs__ neg "
    "__neg__ negative positive __pos__ ceil floor round trunc frac sign sgn signbit"
)
_COMPARING = (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ eq ne lt le gt ge equal isfinite isinf isnan "
    "logical_and logical_not logical_or logical_xor __and__ __or__ __xor__ __invert__ __rand__ "
    "__ror__ __rxor__ all any bitwise_and bitwise_or bitwise_xor bitwise_not allclose isclose"
)
_MAKING = "empty_like full full_like ones ones_like zeros zeros_like eye arange new_zeros new_ones"

EXACT = _set_of(" ".join((_MOVING, _PICKING, _CASTING, _COMPARING, _MAKING)))
"""Operations whose results are copies, choices or comparisons: no rounding excuses a difference."""

MATRIX = _set_of(
    "linear matmul __matmul__ __rmatmul__ mm bmm addmm addbmm baddbmm addmv mv dot vdot inner "
    "einsum tensordot chain_matmul multi_dot bilinear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d scaled_dot_product_attention "
    "multi_head_attention_forward lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell affine_grid cdist cov corrcoef matrix_power"
)
"""Operations made of matrix products: devices may run them on operands of fewer bits."""

# A transposed convolution adds overlapping windows after its product, in its own type; a product of
# more than two tensors rounds what it makes of the first two.
_FUSED_MATRIX = _set_of(
    "scaled_dot_product_attention multi_head_attention_forward lstm gru rnn_tanh rnn_relu "
    "lstm_cell gru_cell conv_transpose1d conv_transpose2d conv_transpose3d einsum bilinear "
    "multi_dot chain_matmul affine_grid cdist cov corrcoef matrix_power rnn_tanh_cell rnn_relu_cell"
)

MANY_STEPS = _set_of("multi_head_attention_forward lstm gru rnn_tanh rnn_relu")
"""Functions that are as many steps as a module, each of which may cancel."""

WITH_PLACES = _set_of(
    "topk sort max min median kthvalue mode cummax cummin max_pool1d max_pool2d max_pool3d"
)
"""Operations that return values and their places; among equal values any place is right."""

PLACES_ALONE = _set_of("argmax argmin argsort")
"""Operations that return places alone."""

ROUNDED_ONCE = (MATRIX - _FUSED_MATRIX) | _set_of(
    "__add__ __radd__ __iadd__ add add_ __sub__ __rsub__ __isub__ sub sub_ rsub __mul__ __rmul__ "
    "__imul__ mul mul_ multiply __truediv__ __rtruediv__ __itruediv__ div div_ true_divide "
    "sqrt rsqrt reciprocal exp log sin cos tanh sigmoid erf sum mean avg_pool1d avg_pool2d "
    "adaptive_avg_pool1d adaptive_avg_pool2d outer square relu leaky_relu"
)
"""Operations that every sound kernel computes in float32 or better and rounds once at the end."""

RANDOM = _set_of(
    "alpha_dropout bernoulli bernoulli_ cauchy_ dropout dropout1d dropout2d dropout3d dropout_ "
    "exponential_ feature_alpha_dropout feature_dropout geometric_ gumbel_softmax log_normal_ "
    "multinomial normal normal_ poisson rand rand_like randint randint_like randn randn_like "
    "random_ randperm rrelu uniform_"
)
"""Operations that draw random numbers; the state they draw from is not recorded."""

CONVOLUTIONS = _set_of("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
"""Products whose gradients, too, may be added up window by window."""

SCALING = _set_of(
    "mul __mul__ __rmul__ __imul__ mul_ multiply div div_ __truediv__ __itruediv__ true_divide"
)
"""Operations that may multiply a tensor by a number."""

AVERAGING = _set_of("mean sum")
"""Operations whose gradients are spread over what was summed."""

ADDING = _set_of("__add__ __radd__ __iadd__ add add_ __sub__ __rsub__ __isub__ sub sub_ rsub")
"""Operations that add what they are given, and hand gradients on as they are."""

MOVING = _set_of(
    "__getitem__ argmax argmin argsort embedding flip fliplr flipud gather index_copy "
    "index_put index_put_ index_select masked_scatter masked_select max_pool1d max_pool2d "
    "max_pool3d nonzero one_hot roll rot90 scatter scatter_ sort take take_along_dim topk "
    "where"
)
"""Operations that pick values or put them into other places."""

NORMS = _set_of("layer_norm group_norm batch_norm instance_norm rms_norm local_response_norm")
"""Operations that divide by how far their input spreads."""

EXPONENTIALS = _set_of("exp exp_ softmax logsumexp expm1 exp2")
"""Operations that turn a change into a relative change."""

GATES = _set_of(
    "relu relu_ relu6 leaky_relu prelu rrelu hardtanh hardswish hardsigmoid threshold clamp clamp_ "
    "clamp_min clamp_max clip max min maximum minimum amax amin max_pool1d max_pool2d max_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d abs __abs__ l1_loss hinge_embedding_loss median "
    "kthvalue topk sort hardshrink softshrink"
)
"""Operations with a kink: which way a gradient goes hangs on which side of it an element lies."""

LOSSES = _set_of(
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div ctc_loss"
)
"""Operations that compare with a target, which is data."""


PARAMETER_PLACES = {
    **dict.fromkeys(sorted(CONVOLUTIONS | {"linear"}), ("input.1", "input.2")),
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


_MODULES = {
    "Linear": "linear",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "ConvTranspose1d": "conv_transpose1d",
    "ConvTranspose2d": "conv_transpose2d",
    "ConvTranspose3d": "conv_transpose3d",
    "LSTM": "lstm",
    "GRU": "gru",
    "LSTMCell": "lstm_cell",
    "GRUCell": "gru_cell",
    "RNNCell": "rnn_tanh_cell",
    "MultiheadAttention": "multi_head_attention_forward",
    "Embedding": "embedding",
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    "BatchNorm1d": "batch_norm",
    "BatchNorm2d": "batch_norm",
    "BatchNorm3d": "batch_norm",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "LeakyReLU": "leaky_relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "MaxPool1d": "max_pool1d",
    "MaxPool2d": "max_pool2d",
    "MaxPool3d": "max_pool3d",
    "Flatten": "flatten",
    "Dropout": "dropout",
}
# Modules of torch's that are more than one step.
_MANY_STEPS = frozenset(("LSTM", "GRU", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention"))


def is_compound(name: str) -> bool:
    """Whether a call is a module that may be many steps, rather than one operation.

    >>> is_compound("Module.block.Block.forward.0"), is_compound("Module.fc.Linear.forward.0")
    (True, False)
    """
    if not name.startswith("Module."):
        return False
    try:
        call = parse_call(name)
    except NameFormatError:
        return True
    if not isinstance(call, (ModuleCall, ParameterGradients)):
        return True
    return call.class_name not in _MODULES or call.class_name in _MANY_STEPS


@lru_cache(maxsize=1 << 16)
def operation_of(name: str) -> str:
    """Return what a call's name says it does: the API's name, or the module's class.

    Modules that are one operation go by its name.

    >>> operation_of("Functional.linear.0.forward"), operation_of("Module.fc.Linear.backward.0")
    ('linear', 'linear')
    """
    try:
        call = parse_call(name)
    except NameFormatError:
        return name
    if isinstance(call, ApiCall):
        # An operator's overload is part of its name: add.Tensor is an add.
        return call.api_name.partition(".")[0] if call.api_type == "Aten" else call.api_name
    if isinstance(call, (ModuleCall, ParameterGradients)):
        return _MODULES.get(call.class_name, call.class_name)
    return name
