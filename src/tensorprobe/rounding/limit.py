"""How far off something may be, as a sum of terms that each have a reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["Limit", "Term"]


@dataclass(frozen=True, slots=True)
class Term:
    """One reason to be off, and by how much.

    Attributes:
        size: the estimate.
        reason: what makes it, for a person.
        slack: how many times the estimate is allowed.
    """

    size: float
    reason: str
    slack: float = 1.0

    @property
    def total(self) -> float:
        """What the term adds to the limit."""
        return self.size * self.slack

    def __str__(self) -> str:
        times = f"{self.slack:g} times " if self.slack != 1 else ""
        return f"{self.total:.3g}: {self.reason} ({times}{self.size:.3g})"


@dataclass(frozen=True, slots=True)
class Limit:
    """How far off something may be.

    >>> print(Limit((Term(2.0**-8, "its own rounding"),)).times(4).explain())
    at most 0.0156
      0.0156: its own rounding (4 times 0.00391)
    """

    terms: tuple[Term, ...]

    @classmethod
    def nothing(cls, reason: str) -> Limit:
        """Return the limit of what must be equal."""
        return cls((Term(0.0, reason),))

    @classmethod
    def anything(cls, reason: str) -> Limit:
        """Return the limit of what may be off by any amount."""
        return cls((Term(math.inf, reason),))

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return sum(term.total for term in self.terms)

    @property
    def main_term(self) -> Term:
        """The term that allows most."""
        return max(self.terms, key=lambda term: term.total)

    def times(self, factor: float) -> Limit:
        """Return a limit each term of which allows so many times as much."""
        return Limit(tuple(replace(term, slack=factor * term.slack) for term in self.terms))

    def plus(self, *terms: Term) -> Limit:
        """Return a limit with further terms."""
        return Limit((*self.terms, *terms))

    def at_most(self, size: float, reason: str) -> Limit:
        """Return a limit that is no larger than this."""
        return self if self.total <= size else Limit((Term(size, reason),))

    def explain(self) -> str:
        """Return the terms with their reasons, one in a line, the largest first."""
        counting = sorted(self.terms, key=lambda term: -term.total)
        lines = [f"  {term}" for term in counting if term.total or len(counting) == 1]
        return "\n".join((str(self), *lines))

    def __str__(self) -> str:
        return f"at most {self.total:.3g}"
