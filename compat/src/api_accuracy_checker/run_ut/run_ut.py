"""Check each call that was recorded: `python run_ut.py -forward FILE -backward FILE`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from api_accuracy_checker.common.config import msCheckerConfig
from tensorprobe_compat import checking

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Check the calls of a run and return the exit code."""
    return checking.run_ut(argv, error_data_path=msCheckerConfig.error_data_path)


if __name__ == "__main__":
    sys.exit(main())
