"""Fix what is random in a process, so that two runs of a model can be compared.

Dropout is turned off where torch computes it, below `F.dropout` and its kin: modules that exist
already and functions that were imported by name before obey as well.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tensorprobe.errors import ConfigError

__all__ = ["seed_all"]

_LARGEST_SEED = 2**32 - 1
# What torch.nn.functional calls: the probability is the second argument of all of them.
_DROPOUTS = (
    "alpha_dropout", "alpha_dropout_", "dropout", "dropout_", "feature_alpha_dropout",
    "feature_alpha_dropout_", "feature_dropout", "feature_dropout_",
)  # fmt: skip
_RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")

# What was replaced, to be put back: where, under which name, by what it was there (None: nothing).
_replaced: list[tuple[ModuleType, str, Any]] = []
# What cuDNN's `deterministic` and `benchmark` were before `mode` was asked for.
_cudnn_before: tuple[bool, bool] | None = None


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Fix every random state of this process; the last call decides.

    >>> seed_all(7)
    >>> first = torch.rand(2)
    >>> seed_all(7)
    >>> torch.equal(first, torch.rand(2))
    True

    Args:
        seed: the seed of Python, numpy and torch on every device, and of PYTHONHASHSEED for the
            processes that this one starts.
        mode: whether torch uses deterministic algorithms alone; slower, and an error where there
            is none.
        rm_dropout: whether every dropout passes its input through: the functions and modules of
            torch.nn, the dropout_p of scaled_dot_product_attention, and that between the layers of
            recurrent modules.

    Raises:
        ConfigError: an argument is of another type, or the seed is not from 0 to 2**32 - 1.
    """
    if type(seed) is not int or not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError(f"seed_all: seed is {seed!r}, wanted a number from 0 to {_LARGEST_SEED}")
    for name, flag in (("mode", mode), ("rm_dropout", rm_dropout)):
        if type(flag) is not bool:
            raise ConfigError(f"seed_all: {name} is {flag!r}, wanted True or False")
    random.seed(seed)
    np.random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    # All devices: torch hands it on to every backend, also one that registered itself.
    torch.manual_seed(seed)
    _restore_cudnn()
    if mode:
        # cuBLAS reads it when it is first used; HCCL when the first group is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        _make_cudnn_deterministic()
    if hasattr(torch, "npu"):
        os.environ["HCCL_DETERMINISTIC"] = str(mode)
    torch.use_deterministic_algorithms(mode)
    _restore_dropout()
    if rm_dropout:
        _remove_dropout()


def _make_cudnn_deterministic() -> None:
    global _cudnn_before
    cudnn = torch.backends.cudnn
    _cudnn_before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False


def _restore_cudnn() -> None:
    global _cudnn_before
    cudnn = torch.backends.cudnn
    # What somebody set since then stays.
    if _cudnn_before is not None and (cudnn.deterministic, cudnn.benchmark) == (True, False):
        cudnn.deterministic, cudnn.benchmark = _cudnn_before
    _cudnn_before = None


def _remove_dropout() -> None:
    low: Any = torch._VF
    for name in _DROPOUTS:
        without = _without_probability(getattr(torch, name))
        # torch.nn.functional reaches the first one, a user's own code the second.
        _replace(low, name, without)
        _replace(torch, name, without)
    for name in _RECURRENT:
        _replace(low, name, _without_layer_dropout(getattr(torch, name)))
    functional = torch.nn.functional
    _replace(
        functional,
        "scaled_dot_product_attention",
        _without_attention_dropout(functional.scaled_dot_product_attention),
    )


def _restore_dropout() -> None:
    while _replaced:
        home, name, before = _replaced.pop()
        if before is None:
            delattr(home, name)
        else:
            setattr(home, name, before)


def _replace(home: ModuleType, name: str, function: Callable[..., Any]) -> None:
    # torch._VF has no attributes of its own but finds them when asked.
    _replaced.append((home, name, vars(home).get(name)))
    setattr(home, name, function)


def _without_probability(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def dropout(input: Any, p: float, train: bool) -> Any:
        # With probability 0 torch returns the input itself and draws no random number.
        return function(input, 0.0, train)

    return dropout


def _without_attention_dropout(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        elif "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return function(*args, **kwargs)

    return scaled_dot_product_attention


def _without_layer_dropout(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def recurrent(*args: Any) -> Any:
        # After the weights stand has_biases and num_layers, then the dropout; a packed sequence
        # has one argument more before them.
        flag = next((place for place in (3, 4) if isinstance(args[place], bool)), None)
        if flag is not None:
            args = (*args[: flag + 2], 0.0, *args[flag + 3 :])
        return function(*args)

    return recurrent
