"""Facts of the operation of one call, told from the call's name; quick, for every call."""

from __future__ import annotations

from tensorprobe.operations.facts import OVERWRITING, UNINITIALISED, Fact

__all__ = ["is_overwritten", "is_uninitialised"]


def is_overwritten(text: str) -> bool:
    """Whether a call writes over its first argument without a look at what was there.

    >>> is_overwritten("Tensor.zero_.0.forward"), is_overwritten("Tensor.add_.0.forward")
    (True, False)
    """
    return _is_forward_of(text, OVERWRITING)


def is_uninitialised(text: str) -> bool:
    """Whether a call returns memory as it was found, so that its results mean nothing.

    >>> is_uninitialised("Torch.zeros.0.forward"), is_uninitialised("Aten.empty.out.0.forward")
    (False, True)
    """
    return _is_forward_of(text, UNINITIALISED)


def _is_forward_of(text: str, fact: Fact) -> bool:
    api, _, direction = text.rpartition(".")
    return direction == "forward" and api.rpartition(".")[0].partition(".")[2] in fact
