"""`python -m msprobe` is the command `msprobe`."""

from __future__ import annotations

import sys

from msprobe.msprobe import main

if __name__ == "__main__":
    sys.exit(main())
