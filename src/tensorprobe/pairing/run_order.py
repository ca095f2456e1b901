"""The order in which a run made its calls, told from their names.

Dumps list calls as they were recorded. Gradients of parameters, and of values that were saved, may
stand where their module, or value, came forward, though they are made in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from tensorprobe.errors import NameFormatError
from tensorprobe.names import (
    ApiCall,
    CallName,
    ModuleCall,
    ParameterGradients,
    SavedValue,
    forward_of,
    parse_call,
)

__all__ = ["Phase", "forward_name", "in_run_order", "is_filled_later", "phase_of"]

Phase = Literal["forward", "backward"]


@lru_cache(maxsize=1 << 16)
def phase_of(name: str) -> Phase:
    """Return whether a call belongs to the forward or the backward pass.

    >>> phase_of("Module.fc.Linear.parameters_grad")
    'backward'
    """
    call = _try_parse(name)
    if isinstance(call, (ApiCall, ModuleCall)):
        return call.direction
    return "backward" if isinstance(call, ParameterGradients) else "forward"


def forward_name(name: str) -> str:
    """Return the name of the forward call that a backward call, or gradients, belong to.

    >>> forward_name("Module.fc.Linear.parameters_grad")
    'Module.fc.Linear.forward.0'
    """
    call = parse_call(name)
    if isinstance(call, ParameterGradients):
        return str(ModuleCall(call.path, call.class_name, "forward", call.number or 0))
    return forward_of(name)


def is_filled_later(name: str) -> bool:
    """Whether a name is that of gradients which stand where their module, or value, came forward.

    They are made in the backward pass, when all that a run computes forward is there.

    >>> is_filled_later("Module.fc.Linear.parameters_grad"), is_filled_later("x_grad.0.debug")
    (True, True)
    >>> is_filled_later("Module.fc.Linear.backward.0"), is_filled_later("x.0.debug")
    (False, False)
    """
    if ".parameters_grad" not in name and not name.endswith(".debug"):
        return False
    call = _try_parse(name)
    return isinstance(call, ParameterGradients) or (
        isinstance(call, SavedValue) and call.gradient_of is not None
    )


def in_run_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the run: parameter gradients after their module's backward."""
    waiting: dict[tuple[str, str], list[str]] = {}
    order = []
    for name in names:
        if ".parameters_grad" in name:
            call = _try_parse(name)
            if isinstance(call, ParameterGradients):
                waiting.setdefault((call.path, call.class_name), []).append(name)
                continue
        order.append(name)
    if not waiting:
        return order
    result = []
    for name in order:
        result.append(name)
        if name.startswith("Module."):
            call = _try_parse(name)
            if isinstance(call, ModuleCall) and call.direction == "backward":
                result += waiting.pop((call.path, call.class_name), [])
    return result + [name for names in waiting.values() for name in names]


def _try_parse(name: str) -> CallName | None:
    try:
        return parse_call(name)
    except NameFormatError:
        return None
