"""Tell which records stand in a dump before their values were made."""

from __future__ import annotations

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ParameterGradients, SavedValue, parse_call

__all__ = ["is_filled_later"]


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
    try:
        call = parse_call(name)
    except NameFormatError:
        return False
    return isinstance(call, ParameterGradients) or (
        isinstance(call, SavedValue) and call.gradient_of is not None
    )
