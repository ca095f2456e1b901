"""`python -m tensorprobe` is `tensorprobe`."""

import sys

from tensorprobe.cli import run

if __name__ == "__main__":
    sys.exit(run())
