"""`tensorprobe overflow`: judge a dump's overflows and print a sentence for each."""

from __future__ import annotations

from typing import Any

from tensorprobe.overflow.session import JudgedOverflow, overflow_dump
from tensorprobe.report.console import QuietConsole
from tensorprobe.report.dump_text import print_gaps
from tensorprobe.report.lines import print_line
from tensorprobe.report.overflow_text import OriginLine, print_overflow_end
from tensorprobe.system.clean_text import one_line

__all__ = ["run_overflow"]


def run_overflow(dump: str, **options: Any) -> int:
    """Judge the overflows of a dump and print what was found.

    Returns:
        The exit code: 1 if an overflow is abnormal, else 2 if something could not be read.

    Raises:
        TensorprobeError: the dump cannot be opened or an option not be used.
    """
    last_part = ""

    def show(overflow: JudgedOverflow) -> None:
        nonlocal last_part
        if overflow.part != last_part:
            last_part = overflow.part
            print_line(f"{overflow.part}:")
        print_line(one_line(overflow.sentence))

    report = overflow_dump(dump, on_judged=show, **options)
    verdicts = [overflow.verdict for overflow in report.overflows]
    print_overflow_end(
        QuietConsole(),
        counts={verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
        origins=[OriginLine(o.part, o.name, o.made, o.inputs, o.outputs) for o in report.origins],
        paths=[path for path in (report.path, report.origins_path) if path is not None],
    )
    print_gaps(QuietConsole(stderr=True), report.gaps)
    if report.has_abnormal:
        return 1
    return 2 if report.gaps else 0
