"""Which operation a name means: in place or not, an operator or a method, one overload or another.

Tensor.__iadd__.3.forward ─► operation_of ─► __iadd__ ─► spellings_of ─► __iadd__, add
Aten.add_.Tensor.0.forward ─► operation_of ─► add_ ─► spellings_of ─► add_, add
"""

from __future__ import annotations

from functools import lru_cache

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, ModuleCall, ParameterGradients, parse_call

__all__ = ["is_compound", "operation_of", "spellings_of", "writes_by_name"]

# Parts of torch whose names stand before those of their functions; the dispatcher has them joined.
_SPACES = frozenset(("fft", "linalg", "nested", "sparse", "special"))

_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "matmul": "matmul",
    # `div` may round to whole numbers, which the operator does not.
    "truediv": "true_divide",
    "div": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
# With the operands the other way round they are an operation of their own.
_ORDERED = frozenset(("sub", "truediv", "div", "floordiv", "mod", "pow", "lshift", "rshift"))

_DUNDERS = {
    "__abs__": "abs",
    "__eq__": "eq",
    "__ge__": "ge",
    "__gt__": "gt",
    "__invert__": "bitwise_not",
    "__le__": "le",
    "__lt__": "lt",
    "__ne__": "ne",
    "__neg__": "neg",
    "__pos__": "positive",
    **{f"__{symbol}__": name for symbol, name in _OPERATORS.items()},
    **{f"__i{symbol}__": name for symbol, name in _OPERATORS.items()},
    **{
        f"__r{symbol}__": f"r{name}" if symbol in _ORDERED else name
        for symbol, name in _OPERATORS.items()
    },
}
_IN_PLACE = frozenset(f"__i{symbol}__" for symbol in _OPERATORS) | {"__setitem__", "out"}

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
    "EmbeddingBag": "embedding_bag",
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
    "Upsample": "interpolate",
    "Dropout": "dropout",
    "Dropout1d": "dropout1d",
    "Dropout2d": "dropout2d",
    "Dropout3d": "dropout3d",
    "AlphaDropout": "alpha_dropout",
    "FeatureAlphaDropout": "feature_alpha_dropout",
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


@lru_cache(maxsize=1 << 14)
def spellings_of(operation: str) -> tuple[str, ...]:
    """Return the names that an operation is known by, from its own to the plainest.

    >>> spellings_of("__iadd__"), spellings_of("add_.Tensor"), spellings_of("linalg.svd")
    (('__iadd__', 'add'), ('add_.Tensor', 'add_', 'add'), ('linalg.svd', 'svd', 'linalg_svd'))
    """
    first, _, rest = operation.partition(".")
    joined = f"{first}_{rest}" if first in _SPACES and rest else ""
    # A name that torch has both here and there means the same in both.
    plain = rest if joined else first
    base = _DUNDERS.get(plain, plain) if plain.endswith("__") else plain.removesuffix("_")
    return tuple(dict.fromkeys(filter(None, (operation, plain, base, joined))))


def writes_by_name(api_name: str) -> bool:
    """Whether a function's name says that it writes into what it is given.

    >>> writes_by_name("add_.Tensor"), writes_by_name("__iadd__"), writes_by_name("__invert__")
    (True, True, False)
    """
    return any(
        part in _IN_PLACE or (part.endswith("_") and not part.endswith("__"))
        for part in api_name.split(".")
    )
