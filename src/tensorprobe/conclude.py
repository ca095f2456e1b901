"""The conclusion that `tensorprobe compare` prints before its tables.

Naming the operation at fault may take longer than the tables do, so by itself this is done for
small dumps only; for others one line says how to ask.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from tensorprobe.errors import TensorprobeError

__all__ = ["print_conclusion"]

# What is read, measured and replayed in a few seconds.
_SMALL = 4 << 20


def print_conclusion(candidate: str, reference: str, *, is_wanted: bool | None) -> bool:
    """Print which operation is at fault, or how to find that out.

    Args:
        candidate: the dump of the run under test.
        reference: the dump of the run that is trusted.
        is_wanted: None leaves it to the size of the dumps.

    Returns:
        Whether somebody was named.
    """
    if is_wanted is False:
        return False
    if is_wanted is None and not _are_small(candidate, reference):
        command = shlex.join(("tensorprobe", "blame", candidate, reference))
        sys.stdout.write(f"which operation is at fault: {command}\n\n")
        return False
    # Not at the top: most comparisons end here, and these take a while to load.
    from tensorprobe.blame.run import investigate
    from tensorprobe.blame.text import conclusion_lines

    try:
        conclusion = investigate(candidate, reference).conclusion
    except TensorprobeError:
        # What is wrong with the dumps is for the comparison to say, which tries the same.
        return False
    for line in conclusion_lines(conclusion):
        sys.stdout.write(line + "\n")
    sys.stdout.write("\n")
    return conclusion.culprit is not None


def _are_small(*paths: str) -> bool:
    total = 0
    for path in paths:
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        for here, _, names in os.walk(folder):
            for name in names:
                # A file may vanish meanwhile, or lead nowhere.
                file = Path(here, name)
                total += file.lstat().st_size if file.exists() else 0
                if total > _SMALL:
                    return False
    return True
