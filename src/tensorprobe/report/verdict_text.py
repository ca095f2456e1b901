"""The verdicts on a value, and what tables and the terminal say for each of them.

What is decided is a `Verdict`; every word for it stands here, and nothing reads the words again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

__all__ = ["ACCURACY", "MESSAGES", "WORDS", "Verdict", "checksum_result", "count_words"]

Verdict: TypeAlias = Literal[
    "passed", "failed", "open", "unmatched", "uninitialised", "overwritten"
]
"""How a value of the candidate was judged.

    passed          it agrees well enough
    failed          it does not
    open            nothing can be said, as of a value without data
    unmatched       it has no partner
    uninitialised   it differs, and is memory as it was found: nothing was computed
    overwritten     it differs, and its call writes over it without a look: nothing is made of it
"""

WORDS: Mapping[Verdict, str] = {
    "passed": "passed",
    "failed": "failed",
    "open": "without a verdict",
    "unmatched": "unmatched",
    "uninitialised": "uninitialised",
    "overwritten": "overwritten unread",
}

ACCURACY: Mapping[Verdict, str] = {
    "passed": "Yes",
    "failed": "No",
    "open": "None",
    "unmatched": "Unmatched",
    "uninitialised": "None",
    "overwritten": "None",
}
"""The cell `Accuracy Reached or Not`, which older tools have: Yes, No, None or Unmatched."""

MESSAGES: Mapping[Verdict, str] = {
    "uninitialised": "Uninitialised memory: nothing was computed here. ",
    "overwritten": "Overwritten without being read: nothing is computed from it. ",
}
"""What a row's message says of its verdict; the space at its end separates it from the next."""

_CHECKSUM_RESULTS: Mapping[Verdict, str] = {
    "passed": "Pass",
    "uninitialised": "Uninitialised",
    "overwritten": "Overwritten",
}


def checksum_result(verdict: Verdict) -> str:
    """Return the cell `Result` of a table of checksums.

    >>> checksum_result("passed"), checksum_result("failed"), checksum_result("overwritten")
    ('Pass', 'Different', 'Overwritten')
    """
    return _CHECKSUM_RESULTS.get(verdict, "Different")


def count_words(counts: Mapping[Verdict, int], *, always: tuple[Verdict, ...] = ()) -> str:
    """Return how many values have which verdict, those of none left out.

    >>> count_words({"open": 2, "passed": 5}, always=("passed", "failed"))
    '5 passed, 0 failed, 2 without a verdict'
    """
    found = ((verdict, counts.get(verdict, 0)) for verdict in WORDS)
    return ", ".join(
        f"{count} {WORDS[verdict]}" for verdict, count in found if count or verdict in always
    )
