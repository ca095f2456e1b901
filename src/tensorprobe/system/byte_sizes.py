"""How many bytes a user means."""

from __future__ import annotations

import re

from tensorprobe.errors import ConfigError

__all__ = ["parse_bytes"]

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,3})?) *([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str, option: str = "size") -> int:
    """Return a number of bytes that may have a unit.

    >>> parse_bytes("4096"), parse_bytes("1.5 GiB"), parse_bytes("20mb")
    (4096, 1610612736, 20000000)

    Args:
        text: what a user wrote.
        option: what a message names it after.

    Raises:
        ConfigError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{option} is {text!r}, wanted bytes, such as 4096, 500MB or 2GiB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
