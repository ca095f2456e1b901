"""Judge each overflow that was recorded: `python run_overflow_check.py -forward FILE`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensorprobe_compat import checking

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Judge the overflows of a run and return the exit code."""
    return checking.run_overflow_check(argv)


if __name__ == "__main__":
    sys.exit(main())
