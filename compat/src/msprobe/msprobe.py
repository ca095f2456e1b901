"""The command `msprobe`."""

from __future__ import annotations

import sys

from tensorprobe_compat.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
