"""Texts as a person may see them: nothing in one commands a terminal, hides, or forges a line.

Names, paths, arguments and messages of files are anybody's. Whatever prints one, or writes it into
a file that people read, passes it through here.
"""

from __future__ import annotations

from unicodedata import category

__all__ = ["clean_text", "one_line"]

# Controls (escape sequences, ends of lines), signs without a shape (marks that reorder what stands
# beside them, spaces without a width), and the two other ends of a line.
_OBEYED = frozenset(("Cc", "Cf", "Zl", "Zp"))


def clean_text(text: str) -> str:
    r"""Return a text that a terminal shows and does not obey; its length stays.

    >>> clean_text("a\x1b[31m\nb"), clean_text("\u202eevil")
    ('a�[31m�b', '�evil')
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def one_line(text: str) -> str:
    r"""Return a message as one clean line: its own line breaks become spaces.

    >>> one_line("shapes differ:\n  [2]\x1b and\t[3]\n")
    'shapes differ: [2]� and [3]'
    """
    return clean_text(" ".join(text.split()))


def _shown(sign: str) -> str:
    return "�" if category(sign) in _OBEYED else sign
