"""`python -m tensorprobe` is `tensorprobe`."""

import sys

from tensorprobe.cli import main

if __name__ == "__main__":
    sys.exit(main())
