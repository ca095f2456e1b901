"""The conclusion as lines for a terminal: one screen, the answer first."""

from __future__ import annotations

from collections.abc import Iterator

from tensorprobe.blame.conclusion import Accused, Conclusion, StepSpan
from tensorprobe.blame.places import short_path
from tensorprobe.blame.start import StartDifferences
from tensorprobe.blame.words import distance_words, share_words
from tensorprobe.system.clean_text import clean_text

__all__ = ["conclusion_lines", "count_tensors", "even_out"]

_WIDTH = 12
_LISTED = 4


def conclusion_lines(conclusion: Conclusion) -> Iterator[str]:
    """Yield the lines that say what was found; names from files are made harmless."""
    for line in _lines(conclusion):
        yield clean_text(line)


def _lines(conclusion: Conclusion) -> Iterator[str]:
    first = conclusion.first
    if conclusion.types is not None and first is not None:
        yield _row("first", str(conclusion.types))
    is_told = conclusion.verdict == "nothing to compare"
    has_more = (first or conclusion.types) is not None and not is_told
    if conclusion.start.kind in ("data", "weights") and has_more:
        yield _row("first", _start_text(conclusion))
    if first is None:
        yield _row("verdict", conclusion.summary)
        if conclusion.closest is not None and conclusion.verdict == "noise":
            name, times = conclusion.closest
            yield _row(
                "closest", f"{name}, at {times:.2g} times what rounding explains (10 is a fault)"
            )
        if conclusion.verdict == "incomplete":
            for uncompared in conclusion.uncompared[1:_LISTED]:
                yield _row("", uncompared)
        if conclusion.verdict == "different from the start":
            places = conclusion.start.places if conclusion.start.kind != "state" else ()
            for use, distance in places[:_LISTED]:
                yield _row("", f"{use.call}.{use.place}  {distance_words(distance.value)}")
            yield _row("next", even_out(conclusion))
        if conclusion.verdict == "nothing to compare":
            yield _row("next", "give two dumps of the same model, captured at the same level")
    else:
        yield from _accused_lines(first, conclusion.span)
        others = [other for other in conclusion.accused[1:] if other.confidence != "possible"]
        for other in others[: _LISTED - 1]:
            yield _row("also", f"{_where(other)}  {other.cause.kind}{other.evidence.beyond}")
    yield _row("seen", _seen(conclusion))
    for note in conclusion.notes:
        yield _row("note", note)


def _accused_lines(accused: Accused, span: StepSpan | None) -> Iterator[str]:
    yield _row("culprit", _where(accused))
    if span is not None:
        before = f"; nobody is at fault in step {span.before}" if span.before else ", the first"
        yield _row("step", f"{span.step}{before}")
    for title, frame in (("code", accused.frame), ("called from", accused.caller)):
        if frame is not None:
            place = f"{short_path(frame.path)}:{frame.line}"
            yield _row(title, f"{place} in {frame.function}: {frame.source}")
    if accused.module is not None:
        yield _row("module", accused.module)
    if accused.inputs is not None:
        agree = (
            "agree" if accused.inputs == 0 else f"differ by {share_words(accused.inputs, 'size')}"
        )
        yield _row("inputs", f"{agree}{_inherited(accused)}")
    if accused.output is not None and accused.evidence.tells_result:
        yield _row("output", f"differs by {_how_far(accused)}{accused.evidence.made_words}")
    if accused.worst is not None and accused.evidence.stands_alone:
        index, got, wanted = accused.worst
        yield _row("worst", f"element {index}: {got:.7g}, should be {wanted:.7g}")
    kind = f"{accused.cause.kind}{' (gradient only)' if accused.gradient_only else ''}"
    yield _row("kind", f"{kind}: {accused.cause.text}")
    calls = "call" if accused.victims == 1 else "calls"
    where = "" if accused.rank is None else " of its rank"
    verb = "differs" if accused.victims == 1 else "differ"
    victims = f"{accused.victims} later {calls}{where} {verb} because of it or of rounding"
    if accused.received:
        ranks = ", ".join(str(rank) for rank in accused.received)
        victims += f"; rank{'s' * (len(accused.received) > 1)} {ranks} received its value"
    yield _row("victims", victims)
    yield _row("sure", f"{accused.confidence}, by {accused.evidence.told_by}")
    yield _row("next", accused.cause.advice)


def _where(accused: Accused) -> str:
    rank = "" if accused.rank is None else f"  (rank {accused.rank})"
    value_path = accused.value_path
    place = f".{value_path}" if value_path.startswith(("output", "input")) else ""
    return f"{accused.call}{place}{rank}"


def _inherited(accused: Accused) -> str:
    if not accused.inherited or not accused.inputs:
        return ""
    return f", which explains {share_words(accused.inherited, 'norm')} in the output"


def _how_far(accused: Accused) -> str:
    """Say how far a result is off: in norm where a replay tells the parts of that, too."""
    if accused.output_norm is not None and accused.made is not None:
        return share_words(accused.output_norm, "norm")
    # What a checksum alone tells has equal statistics.
    return share_words(accused.output, "size") if accused.output else "its elements' order or bits"


def even_out(conclusion: Conclusion) -> str:
    """Say what to do where the two runs differ from the start."""
    if conclusion.span is not None and conclusion.span.before:
        return (
            "compare what feeds and updates the model between the steps: data, optimizer, learning "
            "rate, clipping, loss scale"
        )
    if conclusion.types is not None:
        return "run both in the same types (autocast, half(), bfloat16(), to()), then capture again"
    return "give both runs the same data, seed and weights, then capture again"


def _seen(conclusion: Conclusion) -> str:
    text = (
        f"{conclusion.calls} calls, {conclusion.differing} differ, {conclusion.replayed} replayed"
    )
    if conclusion.only_candidate or conclusion.only_reference:
        text += (
            f"; {len(conclusion.only_candidate)} only in the candidate, "
            f"{len(conclusion.only_reference)} only in the reference"
        )
    return f"{text}; from {conclusion.basis}"


def _start_text(conclusion: Conclusion) -> str:
    what = "the data differ" if conclusion.start.kind == "data" else "the weights differ"
    places = conclusion.start.places
    first = f"{places[0][0].call}.{places[0][0].place}"
    return f"{what} from the start ({count_tensors(conclusion.start)}, first {first})"


def count_tensors(start: StartDifferences) -> str:
    """Return how many tensors from outside differ, in words."""
    count = len(start.places)
    return "1 tensor" if count == 1 else f"{count} tensors"


def _row(title: str, text: str) -> str:
    return f"{title:<{_WIDTH}}{text}".rstrip()
