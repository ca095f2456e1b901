"""The YAML that says what is merged: `api` and `compare_index`, checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorprobe.errors import ConfigError
from tensorprobe.report.compare_columns import Mode, metrics_of
from tensorprobe.system.text_file import find_near, read_yaml, show_path

__all__ = ["KINDS", "MergeConfig", "read_merge_config"]

KINDS: dict[Mode, str] = {"tensor": "real data", "statistics": "statistics"}
"""What can be merged, and what messages call it."""

_FIELDS = ("api", "compare_index")
_EXAMPLE = "write 'api:' and below it '- Distributed.all_reduce'"
_ALIKE = 0.6
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class MergeConfig:
    """What is merged.

    Attributes:
        where: what messages call the file.
        apis: how the names of the rows begin that are wanted.
        metrics: the columns that are wanted, in order; empty: all of them.
        modes: of which kinds of results these are metrics.
        notes: what has no effect.
    """

    where: str
    apis: tuple[str, ...]
    metrics: tuple[str, ...]
    modes: tuple[Mode, ...]
    notes: tuple[str, ...]


def read_merge_config(config: str | os.PathLike[str] | Mapping[str, Any]) -> MergeConfig:
    """Read what is to be merged.

    >>> read_merge_config({"api": ["Distributed"], "compare_index": ["Cosine"]}).modes
    ('tensor',)

    Args:
        config: a YAML file, or its fields.

    Raises:
        ConfigError: the file cannot be read, or a field cannot be meant.
    """
    if isinstance(config, Mapping):
        where, fields = "the configuration", dict(config)
    elif isinstance(config, str | os.PathLike):
        where, raw = show_path(config), read_yaml(config, error=ConfigError)
        if raw is None:
            raise ConfigError(f"{where}: is empty; {_EXAMPLE}")
        if not isinstance(raw, dict):
            raise ConfigError(f"{where}: is no mapping with a field 'api'; {_EXAMPLE}")
        fields = raw
    else:
        raise ConfigError(f"the configuration is {_show(config)}; wanted a path, or a dict")
    notes = _check_fields(fields, where)
    apis = _read_list(fields, "api", where)
    if not apis:
        what = "is empty" if "api" in fields else "is missing"
        raise ConfigError(f"{where}: the field 'api' {what}; {_EXAMPLE}")
    metrics = _read_list(fields, "compare_index", where)
    return MergeConfig(where, apis, metrics, _modes_of(metrics, where), notes)


def _check_fields(fields: Mapping[Any, Any], where: str) -> tuple[str, ...]:
    notes = []
    for name in fields:
        if name in _FIELDS:
            continue
        left = [field for field in _FIELDS if field not in fields]
        near = find_near(name, left, cutoff=_ALIKE) if isinstance(name, str) else None
        if near is not None:
            raise ConfigError(f"{where}: {_show(name)} is an unknown field; did you mean {near!r}?")
        notes.append(f"{where}: {_show(name)} has no effect; the fields are {', '.join(_FIELDS)}")
    return tuple(notes)


def _read_list(fields: Mapping[Any, Any], field: str, where: str) -> tuple[str, ...]:
    """Return the texts of a field, each once."""
    value = fields.get(field)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        kind = "a text" if isinstance(value, str) else _show(value)
        raise ConfigError(f"{where}: {field} is {kind}, wanted a list; {_as_list(field, value)}")
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise ConfigError(f"{where}: {field} holds {_show(item)}, wanted texts; quote it")
    return tuple(dict.fromkeys(item.strip() for item in value))


def _as_list(field: str, value: object) -> str:
    example = value if isinstance(value, str) and len(value) <= _LONGEST_SHOWN else "…"
    return f"write '{field}:' and below it '- {example}'"


def _modes_of(metrics: tuple[str, ...], where: str) -> tuple[Mode, ...]:
    """Return the kinds of results that have these metrics."""
    known = {metric for mode in KINDS for metric in metrics_of(mode)}
    for metric in metrics:
        if metric not in known:
            near = find_near(metric, known, cutoff=_ALIKE)
            hint = (
                f"did you mean {near!r}?"
                if near
                else "; ".join(
                    f"{kind} has {', '.join(metrics_of(mode))}" for mode, kind in KINDS.items()
                )
            )
            raise ConfigError(f"{where}: compare_index: {_show(metric)} is no metric; {hint}")
    modes = tuple(mode for mode in KINDS if set(metrics) <= set(metrics_of(mode)))
    if not modes:
        foreign = {
            kind: next(metric for metric in metrics if metric in metrics_of(mode))
            for mode, kind in KINDS.items()
        }
        shown = " and ".join(f"{metric!r} of {kind}" for kind, metric in foreign.items())
        raise ConfigError(
            f"{where}: compare_index holds {shown}, and no result has both; keep those of one kind"
        )
    return modes


def _show(value: object) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…")
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(value)[:80]
