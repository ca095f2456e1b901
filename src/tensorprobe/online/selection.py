"""Which operators an online check makes again on the CPU, and why it leaves the others alone.

operator ─► OperatorFacts, once for each ─► may it ever be checked?
its arguments ─► why_not_this_call ─► may this call?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tensorprobe.capture.operator_mode import LEFT_OUT_SPACES
from tensorprobe.operations.facts import (
    ABOUT_MEMORY,
    BY_STRIDES,
    UNINITIALISED,
    WITH_WORKSPACE,
    WRITES_UNSEEN,
)
from tensorprobe.precheck.noise import is_view
from tensorprobe.replay.arguments import tensors_in
from tensorprobe.summary.host import is_plain

__all__ = [
    "DRAWS_RANDOM",
    "NO_OPERATOR",
    "OperatorFacts",
    "facts_of",
    "why_not_these_results",
    "why_not_this_call",
]

NO_OPERATOR = "computes nothing"
"""Why a mark of a profiler is not checked; it is not counted either."""

_COLLECTIVE = "a collective, which is never made twice"
DRAWS_RANDOM = "draws random numbers"
"""Why a call is not checked: no two runs share what they draw."""
_OF_TORCH = frozenset(("aten", "prims"))
# Arguments of random operators: what share is dropped, or set.
_SHARES = ("dropout_p", "p", "dropout")
# An operator whose share is called so draws nothing at 0; the others draw, and use nothing of it.
_QUIET_AT_ZERO = frozenset(("dropout_p", "dropout"))


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What holds of every call of an operator.

    Attributes:
        name: its name without the overload: `add`, or `library.add` of one that is not torch's.
        operator: the whole name, `aten.add.Tensor`.
        is_torchs: whether it is one of torch's own.
        reason: why it is never checked; empty if it may be.
        draws_random: whether it draws random numbers, unless it is told a share of 0.
        written: the places of positional arguments that it writes into.
        written_names: those by name.
        stays_in_its_thread: whether it may draw random numbers though nothing of its arguments says
            so, which only the thread of the run can put back.
        is_view: whether it does nothing but say how memory of its arguments lies.
        is_composite: whether it is made of others, so that its result may be memory of an argument
            or not, as it comes.
        writes_unseen: whether it also writes into others, and its schema does not say so.
    """

    name: str
    operator: str
    is_torchs: bool
    reason: str = ""
    draws_random: bool = False
    written: frozenset[int] = frozenset()
    written_names: frozenset[str] = frozenset()
    stays_in_its_thread: bool = False
    is_view: bool = False
    is_composite: bool = False
    writes_unseen: bool = False


@cache
def facts_of(func: Any) -> OperatorFacts:
    """Find out what holds of every call of an operator."""
    if not isinstance(func, torch._ops.OpOverload):
        name = str(func)
        reason = "not one operator but a program of some"
        return OperatorFacts(name, name, is_torchs=False, reason=reason)
    schema = func._schema
    space, _, plain = schema.name.partition("::")
    name = plain if space == "aten" else f"{space}.{plain}"
    written = {
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    names = {argument.name for argument in schema.arguments}
    is_composite = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    draws_random = torch.Tag.nondeterministic_seeded in func.tags
    returns_tensors = any("Tensor" in str(value.type) for value in schema.returns)
    reason = ""
    if space in LEFT_OUT_SPACES:
        reason = _COLLECTIVE if space != "profiler" else NO_OPERATOR
    elif plain in UNINITIALISED:
        reason = "returns uninitialised memory"
    elif plain in ABOUT_MEMORY:
        reason = "a matter of memory, not of numbers"
    elif plain in WITH_WORKSPACE:
        reason = "hands on memory that its own kernel alone can read"
    elif not returns_tensors and not written:
        reason = "returns no tensor"
    return OperatorFacts(
        name,
        str(func),
        space in _OF_TORCH,
        reason,
        draws_random,
        frozenset(place for place, _ in written),
        frozenset(argument for _, argument in written),
        space not in _OF_TORCH or (draws_random and _QUIET_AT_ZERO.isdisjoint(names)),
        is_view(func) and not is_composite and not written and space in _OF_TORCH,
        is_composite,
        # Nobody knows what an operator of the user's own writes into.
        space not in _OF_TORCH or plain in WRITES_UNSEEN,
    )


def why_not_this_call(
    func: Any, facts: OperatorFacts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Say why one call is not checked; empty if it may be."""
    for tensor in tensors_in((args, kwargs)):
        if not is_plain(tensor):
            return f"a {_kind_of(tensor)} among its arguments"
    if facts.draws_random and _may_draw(func, args, kwargs):
        return DRAWS_RANDOM
    if facts.name in BY_STRIDES and not _is_whole(args[0]):
        return "looks at memory beyond its tensor's elements"
    return ""


def why_not_these_results(result: Any) -> str:
    """Say why what a call returned cannot be compared; empty if it can be."""
    for tensor in tensors_in(result):
        if not is_plain(tensor):
            return f"a {_kind_of(tensor)} among its results"
    return ""


def _kind_of(tensor: torch.Tensor) -> str:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"tensor of the class {type(tensor).__name__}"
    if tensor.is_meta:
        return "meta tensor, which holds no numbers,"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"{'nested' if tensor.is_nested else tensor.layout} tensor"
    return f"tensor of {tensor.dtype} that cannot be looked at"


def _may_draw(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator that may draw random numbers does."""
    arguments = func._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    given = {argument.name: argument.default_value for argument in arguments} | given | dict(kwargs)
    if given.get("train") is False or given.get("training") is False:
        return False
    shares = [given[name] for name in _SHARES if name in given]
    # Without a share that could be 0 it draws whatever it is told.
    return not shares or any(share != 0 for share in shares)


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are all of its memory, in C order."""
    size = tensor.numel() * tensor.element_size()
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == size
