"""The terminal that coloured text is printed to."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tensorprobe.system.clean_text import clean_text

__all__ = ["QuietConsole", "print_styled"]


class QuietConsole(Console):
    """A console that leaves a closed pipe to the command line, which ends without complaint."""

    def on_broken_pipe(self) -> None:
        """Pass the error on; rich would exit with code 1 here."""
        raise BrokenPipeError


def print_styled(console: Console, text: Text) -> None:
    """Print one line; what a file put into it cannot end it or command the terminal."""
    text.plain = clean_text(text.plain)
    if console.is_terminal:
        console.print(text, soft_wrap=True, highlight=False)
    else:
        # Many times faster than through rich, which would only take the colours off again.
        console.file.write(text.plain + "\n")
