"""`tensorprobe compare`: compare, show how it goes, and say what came out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tensorprobe.compare.evidence import AskWho
from tensorprobe.compare.inputs import read_inputs
from tensorprobe.compare.result import ComparisonResult, PartResult
from tensorprobe.compare.run import compare
from tensorprobe.report.compare_text import (
    PartSummary,
    print_answer,
    print_call,
    print_summary,
    show_progress,
)

__all__ = ["compare_dumps"]

_EXAMPLES = 3
_NOT_ALL = "note        not everything could be compared; what is missing is named at the end"
_KINDS = {"tensor": "real data", "statistics": "statistics", "md5": "checksums"}


def compare_dumps(
    candidate: str | os.PathLike[str] | Mapping[str, Any],
    reference: str | os.PathLike[str] | None,
    output: str | os.PathLike[str],
    *,
    fuzzy: bool,
    mapping: str | os.PathLike[str] | Mapping[str, str] | None,
    highlight: bool,
    advise: bool,
    first_difference: bool,
    stack: bool | None,
    formats: Sequence[str],
    jobs: int,
    log: bool = False,
    find_culprit: AskWho | None = None,
) -> int:
    """Compare two dumps and print what came out.

    Args:
        candidate: the run under test, or a compare.json, or a dict with its fields.
        reference: the run that is trusted; None with a compare.json.
        output: the folder of the results.
        fuzzy: as for `compare`, like all that follow but the last.
        mapping: a file of pairs, or the pairs.
        highlight: whether to colour suspicious rows.
        advise: whether to say where to look first.
        first_difference: whether to write the first call that differs.
        stack: whether to show call stacks; None: where they are.
        formats: what to write.
        jobs: how many threads.
        log: whether to print a line for every call, where no compare.json says so.
        find_culprit: says who is at fault, which is printed before the summary; None: nobody is
            asked.

    Returns:
        The exit code: 2 if something of the input is missing or damaged. That values differ is a
        result, not an error.

    Raises:
        TensorprobeError: nothing can be compared, or the results cannot be written.
    """
    prints_log = log or (reference is None and read_inputs(candidate).prints_log)
    with show_progress(with_log=prints_log) as progress:
        result = compare(
            candidate,
            reference,
            output,
            fuzzy=fuzzy,
            mapping=mapping,
            highlight=highlight,
            advise=advise,
            first_difference=first_difference,
            stack=stack,
            formats=formats,
            jobs=jobs,
            log=print_call if prints_log else None,
            progress=progress,
            find_culprit=find_culprit,
        )
    missing = _missing(result)
    answer = result.answer
    if answer is not None and answer.lines:
        print_answer((*answer.lines, *((_NOT_ALL,) if missing else ())))
    # One answer, not two: who is at fault says more than what the first failure looks like.
    is_settled = answer is not None and answer.is_settled
    parts = [_summary(part, with_advice=not is_settled) for part in result.parts]
    print_summary(parts, result.extra_files, missing)
    return 2 if missing else 0


def _some(unmatched: Sequence[str], total: int) -> tuple[str, ...]:
    shown = tuple(unmatched[:_EXAMPLES])
    more = total - len(shown)
    return (*shown, f"and {more} more, all in the tables") if more > 0 else shown


def _missing(result: ComparisonResult) -> list[str]:
    lines = [*result.problems, *(str(gap) for part in result.parts for gap in part.gaps)]
    # Nothing failed where nothing was compared; who looks at the exit code must not be content.
    return lines + [
        f"{part.label}: nothing was compared, as no value of the candidate has a partner"
        for part in result.parts
        if not part.tally.compared and (part.tally.unmatched or part.reference_only)
    ]


def _summary(part: PartResult, *, with_advice: bool) -> PartSummary:
    tally = part.tally
    failure = tally.first_failure
    return PartSummary(
        label=part.label,
        kind=_KINDS[part.mode],
        counts=Counter(tally.counts),
        reference_only=part.reference_only,
        examples=_some(part.unmatched, part.unmatched_notes),
        first_failure=None if failure is None else failure.name,
        advice=part.advice.text if with_advice and part.advice and failure else "",
        files=part.files,
    )
