"""Data walks one way: a room imports only the rooms that the architecture allows it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from conftest import REPOSITORY

SOURCE = REPOSITORY / "src" / "tensorprobe"

# docs/architecture.md explains the table; `*` may import everything.
GROUND = {
    "system",
    "_version",
    "errors",
    "names",
    "records",
    "dtypes",
    "tensor_data",
    "overflow_rule",
    "operations",
}
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "system": {"errors"},
    "names": {"errors"},
    "records": {"names"},
    "dtypes": set(),
    "tensor_data": {"dtypes"},
    "overflow_rule": {"dtypes", "errors", "names", "operations"},
    "older_tools": set(),
    "operations": {"dtypes", "errors", "names", "records"},
    "config": {"errors", "system"},
    "metrics": {"system", "errors", "dtypes", "tensor_data"},
    "store": GROUND,
    "summary": GROUND | {"metrics"},
    "capture": GROUND | {"config", "summary", "store", "older_tools"},
    "report": {"system", "errors", "records"},
    "pairing": GROUND | {"store"},
    "compare": GROUND | {"pairing", "store", "metrics", "report"},
    "rounding": GROUND,
    "replay": GROUND | {"rounding", "summary", "store"},
    "precheck": GROUND | {"rounding", "replay", "summary", "store", "metrics", "report"},
    "blame": GROUND | {"rounding", "replay", "compare", "pairing", "store", "metrics", "report"},
    "overflow": GROUND | {"replay", "store", "report"},
    "online": GROUND
    | {
        "capture",
        "compare",
        "metrics",
        "precheck",
        "replay",
        "report",
        "store",
        "summary",
    },
    "show": GROUND | {"store", "metrics", "report"},
    "ranks": GROUND | {"report"},
    "doctor": GROUND | {"metrics", "older_tools", "report"},
    "ending": {"system", "errors"},
    "demo": {"blame", "capture", "compare", "system", "ending", "report", "show"},
    "cli": {"*"},
    "script_start": {"capture", "system", "online"},
    "__main__": {"cli", "system"},
    "__init__": {
        "_version",
        "blame",
        "capture",
        "compare",
        "config",
        "errors",
        "online",
        "overflow",
        "precheck",
        "ranks",
        "replay",
        "store",
    },
}
# Training machines have torch, numpy and the standard library; nothing else may be needed there.
ALLOWED_THIRD_PARTY: dict[str, set[str]] = {
    "store": {"numpy", "jiter"},
    "tensor_data": {"numpy"},
    "summary": {"numpy", "torch", "triton"},
    "capture": {"numpy", "torch"},
    "metrics": {"numpy"},
    "compare": {"numpy"},
    "online": {"torch", "numpy"},
    "overflow": {"torch"},
    "precheck": {"numpy", "torch", "rich"},
    "replay": {"numpy", "torch"},
    "rounding": {"torch"},
    "report": {"rich"},
    "blame": {"torch"},
    "show": {"numpy", "rich"},
    "dtypes": {"numpy"},
    "system": {"yaml"},
    "cli": {"rich", "rich_argparse"},
    "demo": {"torch"},
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "tensorprobe":
                yield from (f"tensorprobe.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


FILES = sorted(SOURCE.rglob("*.py"))


def test_a_room_imports_only_rooms_to_its_left() -> None:
    forbidden = []
    for path in FILES:
        room = room_of(path)
        allowed = MAY_IMPORT[room]
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] != "tensorprobe" or len(parts) == 1 or "*" in allowed:
                continue
            if parts[1] != room and parts[1] not in allowed:
                forbidden.append(f"{path.relative_to(REPOSITORY)} imports {name}")
    assert not forbidden, "\n".join(forbidden)


def test_a_room_needs_only_the_packages_it_may() -> None:
    forbidden = []
    for path in FILES:
        allowed = {"tensorprobe", "", *ALLOWED_THIRD_PARTY.get(room_of(path), set())}
        forbidden += foreign_imports(path, allowed)
    assert not forbidden, "\n".join(forbidden)


def test_the_older_names_need_tensorprobe_alone() -> None:
    own = {"tensorprobe", "tensorprobe_compat", "msprobe", "ptdbg_ascend", "api_accuracy_checker"}
    files = sorted((REPOSITORY / "compat/src").rglob("*.py"))
    assert files
    forbidden = [line for path in files for line in foreign_imports(path, own)]
    assert not forbidden, "\n".join(forbidden)


def foreign_imports(path: Path, allowed: set[str]) -> list[str]:
    """The imports of a file that neither Python brings along nor `allowed` names."""
    known = allowed | sys.stdlib_module_names
    names = [name for name in imports_of(path) if name.partition(".")[0] not in known]
    return [f"{path.relative_to(REPOSITORY)} imports {name}" for name in names]


def test_every_room_of_the_table_exists() -> None:
    assert {room_of(path) for path in FILES} == set(MAY_IMPORT)
