"""`python -m tensorprobe.demo FOLDER`: the main job on a built-in example."""

import sys

from tensorprobe.ending import Manner, ended
from tensorprobe.system.ctrl_c import end_at_once


def _show(_: Manner) -> int:
    # Only now: torch is loaded with it, which takes seconds.
    from tensorprobe.demo.faulty_norm import main

    return main(sys.argv[1] if len(sys.argv) > 1 else "demo-output")


if __name__ == "__main__":
    end_at_once()
    sys.exit(ended(_show))
