"""A dump as strict JSON for machines; what is not finite is a text, `"NaN"`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorprobe.records import CallRecord, DumpInfo, Gap, PeerOpValue
from tensorprobe.report.rows import Branch, Details, TensorDetails
from tensorprobe.report.value_text import json_number, value_json

__all__ = ["details_json", "gaps_json", "part_json", "tree_json_lines"]


def part_json(label: str, path: Path, info: DumpInfo) -> str:
    """Return what a part of a dump is as one JSON object."""
    return json.dumps({"kind": "part", "path": str(path), "label": label} | asdict(info))


def tree_json_lines(label: str, branches: Iterable[Branch]) -> Iterator[str]:
    """Yield one JSON object per call."""
    for branch in branches:
        if branch.call is not None:
            row: dict[str, Any] = {"kind": "call", "part": label, "parent": branch.parent}
            yield json.dumps(row | _call_json(branch.call))


def gaps_json(gaps: tuple[Gap, ...]) -> Iterator[str]:
    """Yield one JSON object per gap."""
    for gap in gaps:
        yield json.dumps({"kind": "gap", "path": str(gap.path), "problem": gap.problem})


def details_json(label: str, details: Details) -> str:
    """Return everything about one call as one JSON object."""
    row = {
        "kind": "call",
        "part": label,
        "parent": details.parent,
        "children": list(details.children),
        "stack": [asdict(frame) for frame in details.stack],
        "data": [_tensor_json(tensor) for tensor in details.tensors],
    }
    return json.dumps(row | _call_json(details.call))


def _call_json(call: CallRecord) -> dict[str, Any]:
    values = [
        {"name": leaf.name, "section": leaf.section, "path": list(leaf.path)}
        | value_json(leaf.value)
        | ({} if leaf.peer_op is None else {"peer_op": _peer_json(leaf.peer_op)})
        for leaf in call.leaves(with_empty=True)
    ]
    row: dict[str, Any] = {"name": call.name, "is_recompute": call.is_recompute, "values": values}
    if call.defaults:
        row["defaults"] = {key: value_json(value) for key, value in call.defaults.items()}
    return row


def _peer_json(op: PeerOpValue) -> dict[str, Any]:
    return {"op": op.op, "peer": op.peer, "tag": op.tag, "group_id": op.group_id}


def _tensor_json(tensor: TensorDetails) -> dict[str, Any]:
    if tensor.problem is not None:
        return {"name": tensor.leaf.name, "problem": tensor.problem}
    return {
        "name": tensor.leaf.name,
        "statistics": {key: json_number(value) for key, value in tensor.statistics.items()},
        "histogram": None if tensor.histogram is None else asdict(tensor.histogram),
        "first_values": [json_number(value) for value in tensor.first_values],
    }
