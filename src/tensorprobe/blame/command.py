"""`tensorprobe blame`: name the operation at fault, on the terminal or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorprobe.blame.run import Investigation, investigate
from tensorprobe.blame.text import conclusion_lines
from tensorprobe.errors import RebuildError
from tensorprobe.report.lines import print_line, warn_line
from tensorprobe.system.clean_text import one_line

__all__ = ["blame_dumps"]


def blame_dumps(
    candidate: str, reference: str | None, *, repro: str | None, as_json: bool, **options: Any
) -> int:
    """Print which operation is at fault; without a reference the candidate is a compare.json.

    Returns:
        The exit code: 0 also when there is a culprit, which is a result and no error; 2 if the
        proof of one was asked for and cannot be written, or something of the dumps is missing.

    Raises:
        TensorprobeError: a dump cannot be opened, or the proof's folder cannot be written.
    """
    investigation = investigate(candidate, reference, **options)
    conclusion = investigation.conclusion
    written, problem = None, None
    if repro is not None:
        written, problem = _write_proof(investigation, repro)
    if as_json:
        answer = conclusion.to_json()
        answer["repro"] = None if written is None else str(written)
        answer["repro_problem"] = problem
        answer["missing"] = list(investigation.missing)
        for line in json.dumps(answer, indent=1).splitlines():
            print_line(line)
    else:
        for line in conclusion_lines(conclusion):
            print_line(line)
        if repro is not None:
            print_line(f"{'proof':<12}{written or f'none: {one_line(str(problem))}'}")
    for gap in investigation.missing:
        warn_line(f"missing: {gap}")
    first = conclusion.first
    is_provable = first is not None and first.evidence.nothing_to_prove(first.cause) is None
    return 2 if (problem is not None and is_provable) or investigation.missing else 0


def _write_proof(investigation: Investigation, folder: str) -> tuple[Path | None, str | None]:
    """Return the script that was written, or why there is none."""
    first = investigation.conclusion.first
    if first is None:
        return None, "there is no culprit"
    nothing = first.evidence.nothing_to_prove(first.cause)
    if nothing is not None:
        return None, nothing
    from tensorprobe.blame.repro import write_repro

    chosen = next(entry for entry in investigation.ordered if entry.suspect.call == first.call)
    try:
        return write_repro(chosen, folder), None
    except RebuildError as err:
        # The answer stands without a proof.
        return None, str(err)
