"""Write the origins as nan_analyze of msprobe 8.2.1 does: anomaly_analyze_{time}.json.

    {"rank_1": [{"op_name": …, "data_info": …, "construct_info": …, "stack_info": …}]}

A rank is there if a call of its own made such a value, the origin of all first. What is not finite
is a text, as in every JSON of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorprobe.overflow.origin import Origin
from tensorprobe.report.table import new_report
from tensorprobe.store.dump import RankDump
from tensorprobe.store.leaf_encode import encode_call

__all__ = ["write_origins"]

_VALUES = ("input_args", "input_kwargs", "input", "output")


def write_origins(path: Path, origins: Sequence[Origin], parts: Sequence[RankDump]) -> bool:
    """Write the calls that made a value that is not finite; no file where none did.

    Args:
        path: the file.
        origins: the first of each rank.
        parts: the dumps of these ranks.

    Returns:
        Whether there is a file.

    Raises:
        ReportError: it cannot be written.
    """
    by_label = {part.label: part for part in parts}
    nodes: dict[str, list[dict[str, Any]]] = {}
    for origin in origins:
        if origin.made:
            part = by_label[origin.part]
            # Of several steps a rank has one each.
            nodes.setdefault(f"rank_{part.info.rank or 0}", []).append(_node(part, origin.name))
    if not nodes:
        return False
    with new_report(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(nodes, indent=2).encode() + b"\n")
    return True


def _node(part: RankDump, name: str) -> dict[str, Any]:
    return {
        "op_name": name,
        "data_info": _values(part, name),
        "construct_info": _modules_around(part, name),
        "stack_info": [str(frame) for frame in part.stack(name)],
    }


def _values(part: RankDump, name: str) -> Mapping[str, Any]:
    """Return what the call read and made, as a dump.json has it."""
    record = part.try_call(name)
    if record is None:
        return {}
    entry = json.loads(encode_call(record), parse_constant=str)
    found = {key: entry[key] for key in _VALUES if key in entry}
    # Gradients of parameters have names of their own.
    return found or entry


def _modules_around(part: RankDump, name: str) -> list[str]:
    """Return the call and the modules that it was made in, the outermost first."""
    chain = [name]
    while (parent := part.parent(chain[0])) is not None and parent not in chain:
        chain.insert(0, parent)
    return chain
