"""The pairs that a user names in a file, for runs whose names differ."""

from __future__ import annotations

import os

from tensorprobe.errors import ConfigError
from tensorprobe.system.text_file import read_yaml, show_path

__all__ = ["read_mapping"]


def read_mapping(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a mapping file: names of the candidate's values to names of the reference's.

    Raises:
        ConfigError: it cannot be read or is no such mapping.
    """
    where = show_path(path)
    raw = read_yaml(path, error=ConfigError)
    if not isinstance(raw, dict) or not raw:
        raise ConfigError(f"{where}: wanted lines such as 'name of one value: name of another'")
    for key, value in raw.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigError(f"{where}: {key!r}: {value!r} is no pair of names")
    return raw
