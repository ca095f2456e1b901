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

from tensorprobe.compare.call_rows import CallRows
from tensorprobe.compare.evidence import Answer
from tensorprobe.errors import NameFormatError
from tensorprobe.names import (
    ApiCall,
    SavedValue,
    is_forward,
    is_saved_value,
    parse_call,
)
from tensorprobe.pairing.run_order import is_filled_later
from tensorprobe.pairing.value_names import row_name, state_of
from tensorprobe.report.table import new_report
from tensorprobe.report.value_text import json_number
from tensorprobe.store import RankDump
from tensorprobe.store.leaves import Leaf, leaves_of

__all__ = ["FirstDifference", "add_answer", "write_differences"]

# A value that was saved by its name is a result, like what a call returns.
_RESULTS = ("output", "value")
_ONLY_GIVEN = "what it is given differs; no call's output is off by what the tables call a failure"
_STACK = "NPU_Stack_Info"
_SHOWN = ("NPU max", "NPU min", "NPU mean", "NPU l2norm", "NPU MD5")


class FirstDifference(AbstractContextManager["FirstDifference"]):
    """Writes one rank's calls as they come, and remembers the first that differs."""

    def __init__(self, path: Path, titles: tuple[str, ...], part: RankDump) -> None:
        self._first_output: dict[str, Any] | None = None
        self._late_output: dict[str, Any] | None = None
        self._first_input: dict[str, Any] | None = None
        self._titles, self._part = titles, part
        self._count = 0
        self._report = new_report(path)
        self._file = os.fdopen(self._report.__enter__(), "w", encoding="utf-8", closefd=False)
        self._file.write("{")

    @property
    def node(self) -> dict[str, Any] | None:
        """The first call whose output fails, as diff_analyze shows it; None without one.

        Where no output does, it is the first call that is given a value that fails.
        """
        return self._first_output or self._late_output or self._first_input

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
        entry = json.dumps({"is_same": is_same, "op_items": items})
        before = ",\n" if self._count else "\n"
        self._file.write(f"{before}{json.dumps(call.name)}: {entry}")
        if not is_same and self._first_output is None:
            if not is_filled_later(call.name):
                self._first_output = self._node(call, items)
            elif self._late_output is None:
                self._late_output = self._node(call, items)
        is_given_other = any(row.verdict == "failed" and row.state != result for row in call.rows)
        if is_given_other and self._first_input is None and self._first_output is None:
            self._first_input = self._node(call, items) | {"reason": _ONLY_GIVEN}
        self._count += 1

    def _items(self, call: CallRows) -> Iterator[dict[str, Any]]:
        # The stack stands in the first row of a forward call, where there is one.
        stack = self._stack(call.name) if is_forward(call.name) else []
        for number, row in enumerate(call.rows):
            item: dict[str, Any] = {
                title: json_number(cell)
                for title, cell in zip(self._titles, row.cells, strict=True)
            }
            if number == 0 and stack and _STACK in item:
                item[_STACK] = stack
            item["state"] = row.state
            item["api_origin_name"] = call.name
            op, peer = _peer_of(row.pair.candidate)
            item |= {"NPU P2POp op": op, "NPU P2POp peer": peer}
            yield item

    def _node(self, call: CallRows, items: list[dict[str, Any]]) -> dict[str, Any]:
        info: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
        for item in items:
            section = "output" if item["state"] in _RESULTS else "input"
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


def _peer_of(leaf: Leaf) -> tuple[str, int | str]:
    """Return the operation and the rank that a tensor is sent with or to."""
    peer = leaf.peer_op
    return ("None", "None") if peer is None else (peer.op, peer.peer)


def _type_of(name: str) -> str:
    try:
        call = parse_call(name)
    except NameFormatError:
        return "unknown"
    if isinstance(call, SavedValue):
        return "debug"
    return call.api_type if isinstance(call, ApiCall) else "Module"


def add_answer(nodes: dict[str, dict[str, Any]], rank: str, part: RankDump, answer: Answer) -> None:
    """Add who is at fault to its rank's first differing call, which may only suffer from it.

    A rank that has no such call, because none is off by what the tables call a failure, gets the
    culprit itself.

    Where the runs differ from the start there is no culprit: then the first call that is given
    something else is added in the same way.

    Args:
        nodes: the first differing call of each rank.
        rank: the name of the culprit's rank there.
        part: its dump.
        answer: who is at fault.
    """
    name = str(answer.culprit or answer.start)
    if rank not in nodes:
        nodes[rank] = _plain_node(part, name)
    nodes[rank]["culprit" if answer.culprit else "different_from_start"] = {
        "op_name": name,
        "op_type": _type_of(name),
        "position": _position(part, name),
        **(answer.details or {}),
        "stack_info": [str(frame) for frame in part.stack(name)],
    }


def _plain_node(part: RankDump, name: str) -> dict[str, Any]:
    """Return a call as diff_analyze shows it, from its record alone."""
    info: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
    call = part.try_call(name) if name in part else None
    for leaf in () if call is None else leaves_of(call).leaves:
        shown = {
            title: json_number(cell)
            for title, cell in zip(_SHOWN, (*leaf[4:8], leaf.checksum), strict=True)
            if cell is not None
        }
        shown["NPU P2POp peer"] = _peer_of(leaf)[1]
        section = "output" if state_of(leaf) in _RESULTS else "input"
        info[section][row_name(name, leaf)] = shown
    return {
        "op_name": name,
        "op_type": _type_of(name),
        "position": _position(part, name),
        "data_info": info,
        "stack_info": [str(frame) for frame in part.stack(name)],
    }


def _position(part: RankDump, name: str) -> dict[str, Any]:
    call = part.names.index(name) if name in part else len(part)
    return {"call": call, "parent": part.parent(name)}


def write_differences(path: Path, nodes: Mapping[str, dict[str, Any]]) -> None:
    """Write the first differing call of every rank that has one, the earliest rank first."""
    order = sorted(nodes, key=lambda rank: nodes[rank]["position"]["call"])
    text = json.dumps({rank: [nodes[rank]] for rank in order}, indent=2)
    with new_report(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode() + b"\n")
