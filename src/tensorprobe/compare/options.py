"""How to compare: one frozen set of options, checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tensorprobe.compare.evidence import AskWho
from tensorprobe.errors import ConfigError

__all__ = ["FORMATS", "Options"]

FORMATS = ("xlsx", "csv", "json")


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may ask of a comparison.

    Attributes:
        fuzzy: match calls that differ in their call number alone.
        mapping: names of the candidate's values to those of their partners.
        highlight: mark suspicious rows red and yellow, and say why.
        advise: say which value is the first that fails, and the likely cause.
        first_difference: write every call's state and the first that differs as JSON.
        stack: show call stacks; None: if there are any.
        formats: which of xlsx, csv and json to write.
        jobs: how many threads measure; 0: one per core.
        log: is given a line for every call.
        progress: is told a unit (bytes or calls), how many are done, and of how many.
        find_culprit: is asked who is at fault, once all ranks are compared.
    """

    fuzzy: bool = False
    mapping: Mapping[str, str] = field(default_factory=dict)
    highlight: bool = False
    advise: bool = True
    first_difference: bool = False
    stack: bool | None = None
    formats: tuple[str, ...] = ("xlsx",)
    jobs: int = 0
    log: Callable[[str], None] | None = None
    progress: Callable[[str, int, int], None] | None = None
    find_culprit: AskWho | None = None

    def __post_init__(self) -> None:
        if self.fuzzy and self.mapping:
            raise ConfigError("a mapping file and fuzzy matching exclude each other; give one")
        for name in self.formats:
            if name not in FORMATS:
                raise ConfigError(f"the format {name!r} is not known; wanted some of {FORMATS}")
        if not self.formats and not self.first_difference:
            raise ConfigError(f"no format is wanted; name one or more of {FORMATS}")
        if self.jobs < 0:
            raise ConfigError(f"jobs is {self.jobs}, wanted 0 (one per core) or more")
