"""Count the calls and tensors of every dump of the older tools, without tensorprobe.

    python tests/count_peer_dumps.py PEER_DUMPS > tests/data/peer_counts.json

The standard library alone: what the reader is tested against must not come from the reader.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PTDBG_VALUE = re.compile(r"(.*[._]\d+[._](?:forward|backward))[._](?:input|output)(?:\..*)?")


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def count_values(value: Any) -> dict[str, int]:
    tensors = [leaf for leaf in walk(value) if leaf.get("type") == "torch.Tensor"]
    with_data = sum("data_name" in leaf or "datapath" in leaf for leaf in tensors)
    with_checksum = sum("md5" in leaf for leaf in tensors)
    return {"tensors": len(tensors), "with_data": with_data, "with_checksum": with_checksum}


def count_json(path: Path) -> dict[str, int]:
    dump = json.loads(path.read_text())
    calls = set(dump["data"])
    if dump["task"] == "structure":
        calls |= set(json.loads((path.parent / "construct.json").read_text()))
        for names, _ in json.loads((path.parent / "stack.json").read_text()).values():
            calls |= set(names)
    return {"calls": len(calls)} | count_values(dump["data"])


def count_checker(path: Path) -> dict[str, int]:
    forward = json.loads(path.read_text())
    backward = json.loads(path.with_name(path.name.replace("forward", "backward")).read_text())
    return {"calls": len(forward) + len(backward)} | count_values([forward, backward])


def count_ptdbg(path: Path) -> dict[str, int]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    values = [(match[1], line) for line in lines if (match := PTDBG_VALUE.fullmatch(line[0]))]
    tensors = [line for _, line in values if line[3].startswith("torch.")]
    files = {file.stem for file in (path.parent / path.stem).glob("*.npy")}
    return {
        "calls": len({call for call, _ in values}),
        "tensors": len(tensors),
        "with_data": sum(line[0] in files for line in tensors),
        "with_checksum": sum(isinstance(line[2], str) for line in tensors),
    }


def main() -> None:
    root = Path(sys.argv[1])
    counters = {
        "dump.json": count_json,
        "debug.json": count_json,
        "forward_info_*.json": count_checker,
        "*.pkl": count_ptdbg,
    }
    counts = {
        str(path.relative_to(root)): count(path)
        for pattern, count in counters.items()
        for path in root.rglob(pattern)
    }
    sys.stdout.write(json.dumps(dict(sorted(counts.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
