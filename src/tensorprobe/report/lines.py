"""Lines of plain text for a person: the one way from a report to stdout and stderr.

text ─► clean_text ─► print_line (stdout), warn_line (stderr)
coloured text ─► print_styled (report.console)
"""

from __future__ import annotations

import sys

from tensorprobe.system.clean_text import clean_text

__all__ = ["print_line", "warn_line"]


def print_line(text: str = "") -> None:
    """Print one line to stdout; what a file put into it cannot end it or command the terminal."""
    sys.stdout.write(clean_text(text) + "\n")


def warn_line(text: str) -> None:
    """Print one line to stderr, behind what stdout has so far."""
    sys.stdout.flush()
    sys.stderr.write(clean_text(text) + "\n")
