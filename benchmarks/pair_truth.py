"""Which call of a pair is at fault, found without the tool, for `blame_pairs.py`.

It is the first whose bits change when the fault is added to an otherwise identical run.
"""

from __future__ import annotations

import difflib
import json
import math
from pathlib import Path
from typing import Any

import torch
from pair_cases import Case

__all__ = ["compare_runs", "read_runs"]

UNINITIALISED = ("empty", "empty_like", "new_empty", "empty_strided")


def read_runs(case: Case, folder: Path) -> dict[str, Any]:
    """Return what is right where the two runs do not make the same calls of the same values."""
    if case.expects == "start":
        return {"culprits": [], "verdict": "different from the start"}
    ours, theirs = (read_calls(folder / side) for side in ("npu", "clean"))
    if case.expects == "state":
        first = next(name for name in ours if has_other_inputs(ours[name], theirs.get(name, {})))
        # A mask that is given to a model is data as much as it is state.
        return {"culprits": [first], "verdict": "different from the start"}
    names = [[name for name in run if "backward" not in name and ".parameters_grad" not in name]
             for run in (ours, theirs)]  # fmt: skip
    kinds = [[name.rsplit(".", 2)[0] for name in run] for run in names]
    matcher = difflib.SequenceMatcher(None, kinds[0], kinds[1], autojunk=False)
    found: list[str] = []
    arrived: list[str] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            found += [*names[0][a:b], *names[1][c:d]]
            continue
        both = zip(names[0][a:b], names[1][c:d], strict=True)
        arrived += [mine for mine, other in both if has_other_inputs(ours[mine], theirs[other])]
    # The call that both runs make and that is the first to get other values may be named, too.
    return {"culprits": [*found, *arrived[:1]]}


def has_other_inputs(mine: dict[str, Path], other: dict[str, Path]) -> bool:
    """Whether something goes into a call that is not what goes into its partner."""
    return any(
        not same(path, other.get(place))
        for place, path in mine.items()
        if not place.startswith("output")
    )


def compare_runs(folder: Path, planted: str | None, level: str) -> dict[str, Any] | str:
    """Return the calls that are right answers: the first whose results the fault changes."""
    changed, clean, trusted = (read_calls(folder / side) for side in ("npu", "clean", "bench"))
    found: list[str] = []
    arrived: str | None = None
    magnitude = noise_there = 0.0
    for name, call in changed.items():
        if ".parameters_grad" in name or any(f".{op}." in name for op in UNINITIALISED):
            continue
        twin = clean.get(name, {})
        outputs = {key: path for key, path in call.items() if key.startswith("output")}
        if not found:
            differing = [key for key, path in outputs.items() if not same(path, twin.get(key))]
            if differing:
                inputs = {k: p for k, p in call.items() if not k.startswith("output")}
                touched = any(not same(p, twin.get(k)) for k, p in inputs.items())
                if touched and (level == "L0" or planted in (None, name)):
                    return "the fault sits in what is not recorded"
                found.append(name)
                if touched:
                    arrived = name
                reference = trusted.get(name, {})
                for key in differing:
                    magnitude = max(magnitude, distance(outputs[key], twin.get(key)))
                    noise_there = max(noise_there, distance(twin.get(key), reference.get(key)))
            elif arrived is None and "backward" in name:
                inputs = {k: p for k, p in call.items() if k.startswith("input")}
                if any(not same(path, twin.get(key)) for key, path in inputs.items()):
                    arrived = name
        elif name.startswith("Module.") and parents(folder).get(found[0]) == name:
            found.append(name)
            break
    if not found and arrived is None:
        grads = [n for n, c in changed.items() if ".parameters_grad" in n and any(
            not same(path, clean.get(n, {}).get(key)) for key, path in c.items())]  # fmt: skip
        if not grads:
            return "nothing changes"
        return {"culprits": [grads[0], grads[0].replace("parameters_grad", "backward.0")],
                "gap": False, "magnitude": None}  # fmt: skip
    if math.isfinite(magnitude) and magnitude < 3 * noise_there:
        return f"{magnitude:.1e} is hidden by noise of {noise_there:.1e}"
    result = {"culprits": found, "gap": False, "magnitude": magnitude, "noise": noise_there}
    if planted is None or planted in found or planted.startswith("Module"):
        return result
    if arrived is not None and "backward" in planted and planted in changed:
        return {**result, "culprits": [planted], "gap": True}
    return f"planted in {planted}, shows in {found}, arrives at {arrived}"


def parents(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in (folder / "npu").rglob("construct.json"):
        for name, parent in json.loads(path.read_text()).items():
            found[name] = parent[0] if isinstance(parent, list) else parent
    return found


def read_calls(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files of each call's tensors by their places."""
    path = next(folder.rglob("dump.json"))
    data = json.loads(path.read_text())["data"]
    files = path.parent / "dump_tensor_data"
    found: dict[str, dict[str, Path]] = {}
    for name, call in data.items():
        places: dict[str, Path] = {}
        found[name] = places

        def walk(value: Any, place: str, places: dict[str, Path] = places) -> None:
            if isinstance(value, dict) and value.get("data_name"):
                places[place] = files / value["data_name"]
            elif isinstance(value, dict):
                for key, item in value.items():
                    walk(item, f"{place}.{key}")
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    walk(item, f"{place}.{index}")

        for section, value in call.items():
            walk(value, section)
    return found


def same(path: Path, other: Path | None) -> bool:
    if other is None:
        return False
    a, b = torch.load(path), torch.load(other)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def distance(path: Path | None, other: Path | None) -> float:
    if path is None or other is None:
        return math.inf
    a, b = torch.load(path).double(), torch.load(other).double()
    if a.shape != b.shape:
        return math.inf
    size, difference = float(b.norm()), float((a - b).norm())
    return difference / size if size and math.isfinite(difference) else math.inf
