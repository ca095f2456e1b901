"""The conclusion that `tensorprobe compare` prints before its tables.

    what was compared ─► nothing differs? ─► blame by what was measured ─► replays, where in doubt

The comparison has read and measured everything, so that most answers cost little more. Who is named
by distances alone needs no torch, which takes longer to import than many comparisons; calls are
replayed where that decides. All this ends when it has taken as long as the comparison did.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe.compare.evidence import Answer, PartEvidence
from tensorprobe.compare.inputs import read_inputs
from tensorprobe.errors import TensorprobeError
from tensorprobe.pairing.run_order import is_filled_later

if TYPE_CHECKING:
    from tensorprobe.blame.conclusion import Conclusion
    from tensorprobe.blame.effort import Effort
    from tensorprobe.blame.run import Investigation

__all__ = ["Judge", "judge_for"]

# Replays may go on for as long as the comparison took, and this many seconds in any case.
_LEAST_TIMEOUT = 10.0
_LEAST_SECONDS = 2.0
# Calls are looked at for a good third of that time first, and longer if nobody was found by then.
# How long one takes, and how many of each rank are looked at in any case.
_FIRST_LOOK = 0.4
_CALL_SECONDS = 0.0003
_LEAST_CALLS = 500
_LISTED = 5
_MORE_CALLS = 4


def judge_for(
    candidate: str | os.PathLike[str] | Mapping[str, Any],
    reference: str | os.PathLike[str] | None = None,
    *,
    advise: bool = True,
    first_difference: bool = False,
    has_mapping: bool = False,
    blame: bool | None = None,
) -> Judge | None:
    """Return who is asked who is at fault, or None where nobody is.

    Args:
        candidate: what is compared, as `compare` takes it.
        reference: the trusted run; None with a compare.json, or with its fields.
        advise: whether the user wants to be told where to look first.
        first_difference: whether the user wants the first call that differs.
        has_mapping: whether the user says which values belong together; of runs whose names differ
            only the user knows.
        blame: True for a thorough answer, False for none; None: by the other three.

    Raises:
        ConfigError: the fields lack a path, or hold something else.
    """
    is_asked = (advise or first_difference) and not has_mapping if blame is None else blame
    if not is_asked:
        return None
    if isinstance(candidate, Mapping):
        inputs = read_inputs(candidate)
        candidate, reference = inputs.candidate, inputs.reference
    paths = (str(path) for path in (candidate, reference) if path is not None)
    return Judge(*paths, is_thorough=blame is True)


class Judge:
    """Says who is at fault, from what a comparison has measured.

    Args:
        paths: the dumps of the run under test and of the trusted one, as the user wrote them, or a
            compare.json that names both.
        is_thorough: whether everything is looked at and replayed, however long that takes.
    """

    def __init__(self, *paths: str, is_thorough: bool = False) -> None:
        self._paths = paths
        self._is_thorough = is_thorough

    def prepare(self) -> None:
        """Import what most answers need, which takes as long as reading some gigabytes."""
        import tensorprobe.blame.run
        import tensorprobe.blame.text  # noqa: F401

    def __call__(
        self, parts: Sequence[PartEvidence], seconds: float, missing: Sequence[str] = ()
    ) -> Answer:
        """Return who is at fault.

        Args:
            parts: all ranks and steps that were compared.
            seconds: how long that took, in seconds of computing.
            missing: the ranks and steps that were not compared, a sentence each.
        """
        if all(part.first_unlike is None for part in parts):
            return Answer((f"{'verdict':<12}{_agreement(parts, missing)}",))
        # Who saved single values has no calls to be judged by what goes in.
        watched = [part for part in parts if part.candidate.info.level != "debug"]
        if all(part.first_unlike is None for part in watched):
            return _first_saved(parts)
        # Not at the top: most of it is needed where something differs.
        from tensorprobe.blame.effort import computing_time
        from tensorprobe.blame.run import investigate_parts

        efforts = iter([None]) if self._is_thorough else _efforts(watched, seconds)
        started = computing_time()
        try:
            for effort in efforts:
                found = investigate_parts(watched, effort=effort, missing=missing)
                is_late = computing_time() - started > seconds / _MORE_CALLS
                if found.conclusion.verdict != "noise" or not found.conclusion.left_out or is_late:
                    break
        except TensorprobeError:
            # What is wrong with the dumps is for the comparison to say, which tries the same.
            return Answer(())
        return self._answer(found, parts)

    def _answer(self, found: Investigation, parts: Sequence[PartEvidence]) -> Answer:
        from tensorprobe.blame.text import conclusion_lines

        conclusion = found.conclusion
        lines = [*conclusion_lines(conclusion), *self._more(conclusion)]
        first = conclusion.first
        if first is None:
            return _answer_without_culprit(conclusion, lines, parts)
        details = {
            "rank": first.rank,
            "step": first.step,
            "value": first.value_path,
            "kind": first.cause.kind,
            "explanation": first.cause.text,
            "confidence": first.confidence,
        }
        dumps = [entry.analysis.context.candidate.part for entry in found.ordered]
        calls = [
            (entry.suspect.call, dump.info.rank)
            for entry, dump in zip(found.ordered, dumps, strict=True)
        ]
        chosen = calls.index((first.call, first.rank))
        dump = dumps[chosen]
        part = [part.candidate for part in parts].index(dump)
        advice = f"{conclusion.summary}; {first.cause.advice}."
        entry = found.ordered[chosen]
        # Of a gradient that one run computes in another way, the record may be the reference's.
        is_missing = entry.analysis.context.pairs[entry.suspect.position].candidate is None
        return Answer(
            tuple(lines),
            is_settled=True,
            culprit=first.call,
            part=part,
            details=details,
            advice=advice,
            is_missing=is_missing,
        )

    def _more(self, conclusion: Conclusion) -> list[str]:
        """Say how to learn more than there was time for."""
        if self._is_thorough:
            return []
        first = conclusion.first
        why = ""
        if first is None and conclusion.left_out:
            total = conclusion.left_out + conclusion.calls
            why = f"{conclusion.left_out} of {total} calls were not looked at: "
        elif conclusion.is_cut_short and (first is None or first.confidence != "certain"):
            why = "not all was replayed that may be at fault: "
        elif not _is_unproved(conclusion):
            return []
        command = ("tensorprobe", "blame", *self._paths)
        return [f"{'more':<12}{why}{shlex.join(command)}"]


def _agreement(parts: Sequence[PartEvidence], missing: Sequence[str]) -> str:
    """Say that both runs agree, in no more than was compared and computed."""
    meaningless = sum(part.meaningless for part in parts)
    beside = ""
    if meaningless:
        values = "1 value differs" if meaningless == 1 else f"{meaningless} values differ"
        beside = f"; {values} in uninitialised memory, or in what is overwritten without being read"
    sides = (side for part in parts for side in (part.candidate, part.reference))
    count = len(missing) + sum(len(side.known_gaps) for side in sides)
    if not count:
        what = "computed" if meaningless else "recorded"
        return f"both runs agree in everything that was {what}{beside}"
    what = "1 thing" if count == 1 else f"{count} things"
    return f"both runs agree in what was compared, but {what} could not be{beside}"


def _first_saved(parts: Sequence[PartEvidence]) -> Answer:
    """Say which saved value is the first that differs, of each rank."""
    located = [part for part in parts if part.first_unlike is not None and part.is_located]
    is_one = len(parts) == 1
    if not located:
        return Answer((f"{'verdict':<12}the candidate lacks what the reference has saved",))
    lines = [_line("first", located[0], not is_one, " is the first saved value that differs")]
    part = located[0]
    first = str(part.first_unlike)
    forward = [name for name in part.candidate.names if not is_filled_later(name)]
    if first not in forward:
        advice = "all that was saved forward agrees: see the backward pass behind it"
    elif first == forward[0]:
        advice = "nothing was saved before it: see what it is computed from"
    else:
        before = forward[forward.index(first) - 1]
        advice = f"see what is computed between {before}, which agrees, and it"
    lines.append(f"{'next':<12}{advice}")
    lines += [_line("also", part, not is_one) for part in located[1:_LISTED]]
    if len(located) > _LISTED:
        lines.append(f"{'also':<12}{len(located) - _LISTED} more ranks and steps")
    text = "it is the first saved value that differs"
    info = part.candidate.info
    details = {"rank": info.rank, "step": info.step, "kind": "saved value", "explanation": text}
    sentence = f"{first} is the first saved value that differs; {advice}."
    return Answer(
        tuple(lines),
        is_settled=True,
        culprit=first,
        part=parts.index(part),
        details=details,
        advice=sentence,
    )


def _line(label: str, part: PartEvidence, where: bool, text: str = "") -> str:
    place = f" ({part.candidate.label})" if where else ""
    return f"{label:<12}{part.first_unlike}{place}{text}"


def _answer_without_culprit(
    conclusion: Conclusion, lines: Sequence[str], parts: Sequence[PartEvidence]
) -> Answer:
    if conclusion.verdict != "different from the start":
        return Answer(tuple(lines))
    from tensorprobe.blame.links import Use
    from tensorprobe.blame.text import even_out

    types = conclusion.types
    use = conclusion.start.places[0][0] if types is None else Use(types.call, types.place)
    step = None if conclusion.span is None else conclusion.span.step
    number = next(
        number
        for number, part in enumerate(parts)
        if use.call in part.candidate and (step is None or part.candidate.info.step == step)
    )
    details = {
        "verdict": conclusion.verdict,
        "value": use.place,
        "kind": conclusion.start.kind if types is None else "types",
        "explanation": conclusion.summary,
    }
    advice = f"{conclusion.summary}; {even_out(conclusion)}."
    return Answer(
        tuple(lines), is_settled=True, part=number, details=details, start=use.call, advice=advice
    )


def _is_unproved(conclusion: Conclusion) -> bool:
    """Whether replays can add something to an answer."""
    first = conclusion.first
    if conclusion.basis != "data":
        return False
    if first is None:
        return conclusion.verdict == "noise" and not conclusion.replayed
    return first.evidence.can_be_settled(first.cause)


def _efforts(parts: Sequence[PartEvidence], seconds: float) -> Iterator[Effort]:
    """Yield how much may be done, and how much more while nothing is found."""
    from tensorprobe.blame.effort import Effort

    steps = {part.candidate.info.step for part in parts}
    ranks = max(1, len(parts) // max(1, len(steps)))
    calls = max(_LEAST_CALLS, int(_FIRST_LOOK * seconds / _CALL_SECONDS) // ranks)
    while True:
        time = max(_LEAST_SECONDS, seconds)
        # Nobody waits long for a doubt that compare was not asked to settle.
        longest = max(_LEAST_TIMEOUT, time)
        yield Effort(calls, time / ranks, settles_doubts=True, timeout=longest)
        calls *= _MORE_CALLS
