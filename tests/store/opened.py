"""Small dumps for the tests of open_dump, and what they hold."""

from __future__ import annotations

from pathlib import Path

from conftest import peer_root
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.store import RankDump, open_dump


def write_dump(folder: Path, entries: str, *, top: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dump.json"
    path.write_text(
        f'{{\n "task": "statistics",\n "level": "L1",{top}\n "data": {{\n  {entries}\n }}\n}}'
    )
    return path


def tensors_of(part: RankDump) -> list[TensorValue]:
    leaves = (leaf.value for call in part for leaf in call.leaves())
    return [value for value in leaves if isinstance(value, TensorValue)]


def find_call(path: str, name: str) -> CallRecord:
    return open_dump(peer_root() / path).parts[0].call(name)
