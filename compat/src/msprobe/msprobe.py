"""The command `msprobe`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensorprobe.system.ctrl_c import end_at_once

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without words, that of this process."""
    if argv is None:
        # What is imported now takes a while, in which Ctrl-C may come.
        end_at_once()
    from tensorprobe_compat.command import main as run_command
    from tensorprobe_compat.names import tell_of_clash

    tell_of_clash("msprobe", "mindstudio-probe")
    return run_command(argv)


if __name__ == "__main__":
    sys.exit(main())
