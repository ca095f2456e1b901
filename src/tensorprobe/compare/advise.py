"""Say which value is the first that fails, and what is the likely cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, ModuleCall, ParameterGradients, SavedValue, parse_call
from tensorprobe.operations.facts import IN_ANY_ORDER, RANDOM
from tensorprobe.operations.spelling import operation_of
from tensorprobe.report.table import new_report
from tensorprobe.system.clean_text import clean_text

__all__ = ["Advice", "Failure", "advise", "by_the_table", "write_advice"]

_ALL_WELL = "Every value that was compared meets the requirements."
_MEANINGLESS = (
    " {count} of the others differ and mean nothing: uninitialised memory, or what is overwritten "
    "without being read."
)
_NOTHING_JUDGED = (
    "No value could be judged: see the messages in the table, and what is said to be missing or "
    "unmatched."
)
_INPUT = "This value already differs when it goes in, and no call before it fails."
_INPUT_AFTER_UNMATCHED = (
    "This value already differs when it goes in. Of the calls before it none that was compared "
    "fails, but {calls} is unmatched, wholly or in part: look there first."
)
_INPUT_SOURCES = (
    " 1. See where it comes from: data, weights, or a call that was not captured. 2. See whether a "
    "call that works in place has overwritten it; then that call is at fault. 3. Otherwise memory "
    "may be corrupted."
)
_FORWARD = (
    "What goes in agrees and what comes out does not: this operation computes something else. "
    "Check its implementation, precision and arguments on both sides."
)
_GRADIENT_IN = (
    "The gradient that arrives here already differs although no gradient before it fails: see "
    "whether the forward results above this call, or the loss, differ slightly."
)
_GRADIENT_AFTER_UNMATCHED = (
    "The gradient that arrives here already differs. Of the calls before it none that was compared "
    "fails, but {calls} is unmatched, wholly or in part: look there first."
)
_BACKWARD = (
    "This gradient is the first that differs: check how the operation's backward pass is computed."
)
_MADE_LATER = (
    "This gradient stands where the run came forward, and is made when all that is there. In the "
    "order of the run {name} (line {line}) is the first that fails. "
)
_SAVED = "This saved value is the first that differs: see what was computed since the one before."
_UNCERTAIN = (
    " This operation may add in an order of its own: repeat both runs with seed_all(mode=True)."
)
_DRAWN = " This operation draws random numbers: repeat both runs with seed_all(rm_dropout=True)."


class Failure(NamedTuple):
    """The first row that fails.

    Attributes:
        line: its number from 0.
        name: its value.
        call: the call that it belongs to.
        state: input, parameters, output or value.
        unequal_arguments: what plain arguments of that call the two runs do not share.
    """

    line: int
    name: str
    call: str
    state: str
    unequal_arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """What is said about a comparison: the value that it is about, if one fails, and a text."""

    failure: Failure | None
    text: str

    def __str__(self) -> str:
        line, node = ("NA", "NA") if self.failure is None else self.failure[:2]
        lines = (("Line", str(line)), ("Suspect Nodes", node), ("Expert Advice", self.text))
        return "".join(f"{title}: {clean_text(text)}\n" for title, text in lines)


def write_advice(path: Path, advice: Advice) -> None:
    """Write the advice into a file of its own, in place of an earlier one."""
    with new_report(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(str(advice).encode("utf-8", "backslashreplace"))


def advise(
    failure: Failure | None,
    *,
    unmatched: Sequence[str] = (),
    is_judged: bool = True,
    meaningless: int = 0,
) -> Advice:
    """Return the advice for the first failure of a comparison, or that there is none.

    Args:
        failure: the first row that fails.
        unmatched: the last calls before it that only one run has.
        is_judged: whether any value was found to agree, or not to.
        meaningless: how many values differ and mean nothing.

    >>> print(advise(None), end="")
    Line: NA
    Suspect Nodes: NA
    Expert Advice: Every value that was compared meets the requirements.

    Returns:
        What is said.
    """
    if failure is None:
        text = _ALL_WELL if is_judged else _NOTHING_JUDGED
        return Advice(None, text + (_MEANINGLESS.format(count=meaningless) if meaningless else ""))
    text = _cause(failure, " and ".join(unmatched))
    if failure.unequal_arguments:
        text += f" Its arguments differ: {'; '.join(failure.unequal_arguments)}."
    return Advice(failure, text)


def by_the_table(advice: Advice, gradient: Failure | None) -> Advice:
    """Return advice about the first row that fails, which is what the older tools' files name.

    Args:
        advice: about the first failure in the order of the run.
        gradient: the first failing gradient that stands where the run came forward.

    Returns:
        The advice itself, or, if that gradient stands before it in the table, one that names the
        gradient and says that it does not come first.
    """
    first = advice.failure
    if gradient is None or first is None or gradient.line >= first.line:
        return advice
    text = _MADE_LATER.format(name=first.name, line=first.line) + advice.text
    return replace(advice, failure=gradient, text=text)


def _cause(failure: Failure, unmatched: str) -> str:
    try:
        call = parse_call(failure.call)
    except NameFormatError:
        return _FORWARD
    match call:
        case SavedValue():
            return _SAVED if call.gradient_of is None else _BACKWARD
        case ParameterGradients():
            return _BACKWARD
        case ApiCall() | ModuleCall():
            is_forward = call.direction == "forward"
    if failure.state != "output":
        if is_forward:
            text = _INPUT_AFTER_UNMATCHED.format(calls=unmatched) if unmatched else _INPUT
            return text + _INPUT_SOURCES
        return _GRADIENT_AFTER_UNMATCHED.format(calls=unmatched) if unmatched else _GRADIENT_IN
    text = _FORWARD if is_forward else _BACKWARD
    operation = operation_of(failure.call)
    if operation in RANDOM:
        return text + _DRAWN
    return text + _UNCERTAIN if operation in IN_ANY_ORDER else text
