"""`tensorprobe blame`: name the operation at fault, on the terminal or as JSON."""

from __future__ import annotations

import json
import sys

from tensorprobe.blame.run import investigate
from tensorprobe.blame.text import conclusion_lines

__all__ = ["blame_dumps"]


def blame_dumps(
    candidate: str, reference: str, *, top: int, repro: str | None, as_json: bool
) -> int:
    """Print which operation is at fault.

    Returns:
        The exit code: 0 also when there is a culprit, which is a result and no error.

    Raises:
        TensorprobeError: a dump cannot be opened, or the proof cannot be written.
    """
    investigation = investigate(candidate, reference, top=top)
    conclusion = investigation.conclusion
    written = None
    if repro is not None and conclusion.culprit is not None:
        from tensorprobe.blame.repro import write_repro

        chosen = next(
            entry for entry in investigation.ordered if entry.suspect.call == conclusion.culprit
        )
        written = write_repro(chosen, repro)
    if as_json:
        answer = conclusion.to_json()
        answer["repro"] = None if written is None else str(written)
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
        return 0
    for line in conclusion_lines(conclusion):
        sys.stdout.write(line + "\n")
    if written is not None:
        sys.stdout.write(f"{'proof':<12}{written}\n")
    elif repro is not None:
        sys.stdout.write(f"{'proof':<12}none was written: there is no culprit\n")
    return 0
