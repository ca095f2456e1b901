"""How much text of one result is kept: a file of a megabyte may unpack to gigabytes of it.

Numbers take what they take, and a sheet has only so many rows. Texts are up to 32,767 letters each,
and where a workbook has a list of them, a cell may name any of them again.
"""

from __future__ import annotations

import sys

from tensorprobe.errors import TableError

__all__ = ["TextBudget"]

# Enough for half a million rows of every metric: relative errors are texts, each its own.
_MOST_BYTES = 256 << 20
# What a dict takes to hold one more; for a short text more than the text itself.
_ENTRY = 100
_SHORT = 32
_MOST_SHORT = 10_000


class TextBudget:
    """Keeps a text of a file once, and refuses the file when they are too many or too long.

    >>> budget = TextBudget("a.xlsx")
    >>> budget.keep("N/A") is budget.keep("".join(["N", "/A"]))
    True

    Args:
        where: what messages call the file.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._left = _MOST_BYTES
        self._texts: dict[str, str] = {}

    def keep(self, text: str) -> str:
        """Return the text, or an equal one that came before.

        Raises:
            TableError: there is no room for it.
        """
        kept = self._texts.get(text)
        if kept is not None:
            return kept
        if len(text) <= _SHORT and len(self._texts) >= _MOST_SHORT:
            self._spend(sys.getsizeof(text))
        else:
            self.spend(sys.getsizeof(text))
            self._texts[text] = text
        return text

    def spend(self, size: int = 0) -> None:
        """Take room for something that is kept, besides its place in a dict.

        Raises:
            TableError: there is none.
        """
        self._spend(size + _ENTRY)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TableError(
                f"{self._where}: the rows that are wanted hold more than {_MOST_BYTES >> 20} MiB "
                "of text; with longer names in 'api' fewer of them are wanted"
            )
