"""A dispatch mode that looks at every operator of its thread, and stays out of the compiler's way.

Not seen by any such mode: what one operator launches inside itself, and the inside of a compiled
region.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprobe.operations.facts import WRITES_UNSEEN

__all__ = ["LEFT_OUT_SPACES", "OperatorMode", "may_write"]

LEFT_OUT_SPACES = frozenset(
    ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "profiler")
)
"""What a collective wrote is not there yet when it returns; a profiler computes nothing."""


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The base of what looks at operators; a class of its own says what it does with each."""

    # Without this torch refuses such an operator, and with it the user's call.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile: what it makes gives other last bits than single operators."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler, seconds of a user's first call, to hide what is hidden.
        return False


def may_write(func: Any) -> bool:
    """Whether an operator may write into a tensor that it is given."""
    if not isinstance(func, torch._ops.OpOverload):
        return True
    return func._schema.is_mutable or func._schema.name.partition("::")[2] in WRITES_UNSEEN
