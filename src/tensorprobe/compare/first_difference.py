"""Find the first call whose output differs, per rank, and keep what every call showed.

rows of each call ─► compare_result_rank{N}_{time}.json ─► diff_analyze_{time}.json
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tensorprobe.compare.pairs import CallRows
from tensorprobe.errors import NameFormatError
from tensorprobe.names import ApiCall, is_saved_value, is_uninitialised, parse_call
from tensorprobe.records import CallRecord
from tensorprobe.report.table import new_report
from tensorprobe.report.value_text import json_number
from tensorprobe.store import RankDump

__all__ = ["FirstDifference", "write_differences"]

_PEER_CALL = "batch_isend_irecv"
_SHOWN = ("NPU max", "NPU min", "NPU mean", "NPU l2norm", "NPU MD5")


class FirstDifference(AbstractContextManager["FirstDifference"]):
    """Writes one rank's calls as they come, and remembers the first that differs.

    Attributes:
        node: the first call whose output fails, as diff_analyze shows it; None without one.
    """

    def __init__(self, path: Path, titles: tuple[str, ...], part: RankDump) -> None:
        self.node: dict[str, Any] | None = None
        self._titles, self._part = titles, part
        self._count = 0
        self._report = new_report(path)
        self._file = os.fdopen(self._report.__enter__(), "w", encoding="utf-8", closefd=False)
        self._file.write("{")

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                self._file.write("\n}\n" if self._count else "}\n")
            self._file.close()
        except OSError as err:
            # A full disk shows when the last bytes leave; the hidden file must go even so.
            error = (type(err), err, err.__traceback__)
        self._report.__exit__(*error)

    def add(self, call: CallRows) -> None:
        """Take the rows of the next call."""
        # What was saved by name is a result itself; parameters' gradients are those of other calls.
        result = "value" if is_saved_value(call.name) else "output"
        is_same = not any(row.verdict == "failed" and row.state == result for row in call.rows)
        items = list(self._items(call))
        entry = json.dumps({"is_same": is_same, "op_items": items}, ensure_ascii=False)
        before = ",\n" if self._count else "\n"
        # A name may hold half of a surrogate pair, which no file can.
        text = f"{before}{json.dumps(call.name)}: {entry}"
        self._file.write(text.encode("utf-8", "backslashreplace").decode())
        if not is_same and self.node is None and not is_uninitialised(call.name):
            self.node = self._node(call, items)
        self._count += 1

    def _items(self, call: CallRows) -> Iterator[dict[str, Any]]:
        peers = self._peers(call.name)
        for row in call.rows:
            item: dict[str, Any] = {
                title: json_number(cell)
                for title, cell in zip(self._titles, row.cells, strict=True)
            }
            if "NPU_Stack_Info" in item and item["NPU_Stack_Info"] != "N/A":
                item["NPU_Stack_Info"] = self._stack(call.name)
            item["state"] = row.state
            item["api_origin_name"] = call.name
            op, peer = peers.get(str(item["NPU Name"]), ("None", "None"))
            item |= {"NPU P2POp op": op, "NPU P2POp peer": peer}
            yield item

    def _node(self, call: CallRows, items: list[dict[str, Any]]) -> dict[str, Any]:
        info: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
        for item in items:
            section = "output" if item["state"] == "output" else "input"
            shown = {title: item[title] for title in _SHOWN if title in item}
            shown["NPU P2POp peer"] = item["NPU P2POp peer"]
            info[section][item["NPU Name"]] = shown
        return {
            "op_name": call.name,
            "op_type": _type_of(call.name),
            "position": {"call": self._count, "parent": self._part.parent(call.name)},
            "data_info": info,
            "stack_info": self._stack(call.name),
        }

    def _stack(self, name: str) -> list[str]:
        return [str(frame) for frame in self._part.stack(name)]

    def _peers(self, name: str) -> Mapping[str, tuple[str, int]]:
        if _PEER_CALL not in name:
            return {}
        call = self._part.try_call(name)
        return {} if call is None else dict(_peers_of(call))


def _peers_of(call: CallRecord) -> Iterator[tuple[str, tuple[str, int]]]:
    for leaf in call.leaves():
        if leaf.peer_op is not None:
            yield leaf.name, (leaf.peer_op.op, leaf.peer_op.peer)


def _type_of(name: str) -> str:
    try:
        call = parse_call(name)
    except NameFormatError:
        return "unknown"
    return call.api_type if isinstance(call, ApiCall) else "Module"


def write_differences(path: Path, nodes: Mapping[str, dict[str, Any]]) -> None:
    """Write the first differing call of every rank that has one, the earliest rank first."""
    order = sorted(nodes, key=lambda rank: nodes[rank]["position"]["call"])
    text = json.dumps({rank: [nodes[rank]] for rank in order}, indent=2)
    with new_report(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode() + b"\n")
