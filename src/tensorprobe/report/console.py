"""The terminal that everything is printed to."""

from __future__ import annotations

from rich.console import Console

__all__ = ["QuietConsole"]


class QuietConsole(Console):
    """A console that leaves a closed pipe to the command line, which ends without complaint."""

    def on_broken_pipe(self) -> None:
        """Pass the error on; rich would exit with code 1 here."""
        raise BrokenPipeError
