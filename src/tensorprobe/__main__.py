"""`python -m tensorprobe` is `tensorprobe`."""

import sys

from tensorprobe.system.ctrl_c import end_at_once

__all__ = ["start"]


def start() -> int:
    """Run one command as a process of its own, and return its exit code."""
    end_at_once()
    # Only now: it takes a while, in which Ctrl-C may come.
    from tensorprobe.cli import run

    return run()


if __name__ == "__main__":
    sys.exit(start())
