"""Score `tensorprobe blame` on faultbench: with real data, and with the same dumps' statistics.

    python benchmarks/blame.py                          the pairs of ../shared/faultbench
    python benchmarks/blame.py FOLDER... [--cases]      unpacked pairs, each with an expected.json
    python benchmarks/blame.py --conclusion             what `tensorprobe compare` says first
    python benchmarks/blame.py --since FILE             and which answers are others than last time

A pair is a folder with npu/ (the candidate), bench/ (the reference) and expected.json. `make score`
asks about all pairs that a clone can make, and says what a change of the code has changed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tensorprobe.blame import blame
from tensorprobe.blame.after_compare import Judge
from tensorprobe.compare import compare

REPOSITORY = Path(__file__).parents[1]
SHARED = REPOSITORY.parent / "shared" / "faultbench" / "cases"
# What every clone has.
FEW = REPOSITORY / "tests" / "data" / "faultbench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="unpacked pairs")
    parser.add_argument("--cases", action="store_true", help="list every case that is not right")
    parser.add_argument("--only", default="", help="only cases whose name holds this")
    parser.add_argument("--mode", choices=("data", "statistics", "both"), default="both")
    parser.add_argument("--conclusion", action="store_true", help="score what compare says first")
    parser.add_argument(
        "--since", type=Path, metavar="FILE", help="answers of last time, kept here"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = list(arguments.folders)
        if arguments.since is not None or not folders:
            folders.append(unpack(SHARED if SHARED.is_dir() else FEW, Path(scratch) / "pairs"))
        cases = sorted(path.parent for folder in folders for path in folder.glob("*/expected.json"))
        cases = [case for case in cases if arguments.only in case.name]
        print(f"{'dumps':<12}{'faults':>8}{'right':>8}{'wrong':>8}{'missed':>8}"
              f"{'benign':>8}{'alarms':>8}{'seconds':>9}")  # fmt: skip
        answers: dict[str, str] = {}
        for mode in ("data", "statistics"):
            if arguments.mode in (mode, "both"):
                ask = ask_compare if arguments.conclusion else ask_blame
                answers |= score(cases, mode, Path(scratch), ask, list_cases=arguments.cases)
        if arguments.since is not None:
            tell_changes(answers, arguments.since)


def tell_changes(answers: dict[str, str], file: Path) -> None:
    """Print which answers are others than those that a file holds, and put these there."""
    if file.exists():
        before = json.loads(file.read_text())
        changed = [name for name in answers if answers[name] != before.get(name)]
        print(f"{len(changed)} of {len(answers)} answers are others than last time")
        for name in changed:
            print(f"  {name}: {answers[name]}, before: {before.get(name, 'not asked')}")
    else:
        print(f"{len(answers)} answers are kept: the next run says which of them have changed")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(answers, indent=1))


def unpack(archives: Path, folder: Path) -> Path:
    folder.mkdir()
    for archive in sorted(archives.glob("*.tar.xz")):
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    return folder


class Said(NamedTuple):
    """Who was named, or what was said instead."""

    culprit: str | None
    verdict: str | None


def ask_blame(candidate: Path, reference: Path, scratch: Path) -> Said:
    conclusion = blame(candidate, reference)
    return Said(conclusion.culprit, conclusion.verdict)


def ask_compare(candidate: Path, reference: Path, scratch: Path) -> Said:
    answer = compare(candidate, reference, scratch / "o", find_culprit=Judge("", "")).answer
    if answer is None:
        return Said(None, None)
    return Said(answer.culprit, str((answer.details or {}).get("verdict")))


def score(
    cases: list[Path],
    mode: str,
    scratch: Path,
    ask: Callable[[Path, Path, Path], Said],
    *,
    list_cases: bool,
) -> dict[str, str]:
    """Print the scores of all cases, and return each outcome with who was named."""
    counts = {"right": 0, "wrong": 0, "missed": 0, "clean": 0, "alarm": 0}
    notes, answers = [], {}
    seconds = 0.0
    for case in cases:
        expected = json.loads((case / "expected.json").read_text())
        candidate, reference = case / "npu", case / "bench"
        if mode == "statistics":
            candidate = reduce_to_statistics(candidate, scratch / "npu")
            reference = reduce_to_statistics(reference, scratch / "bench")
        start = time.perf_counter()
        said = ask(candidate, reference, scratch)
        seconds += time.perf_counter() - start
        outcome = judge(expected, said)
        if list_cases:
            print(f"  {outcome:<8}{case.name}", flush=True)
        counts[outcome] += 1
        answers[f"{case.name}, {mode}"] = f"{outcome} ({said.culprit or said.verdict})"
        if outcome not in ("right", "clean"):
            notes.append(f"  {outcome:<8}{case.name}: said {said.culprit or said.verdict}, "
                         f"wanted {expected['culprits'] or expected.get('verdict')}")  # fmt: skip
    faults = counts["right"] + counts["wrong"] + counts["missed"]
    print(f"{mode:<12}{faults:>8}{counts['right']:>8}{counts['wrong']:>8}{counts['missed']:>8}"
          f"{counts['clean'] + counts['alarm']:>8}{counts['alarm']:>8}{seconds:>9.1f}")  # fmt: skip
    if list_cases:
        print("\n".join(notes))
    return answers


def judge(expected: dict[str, Any], said: Said) -> str:
    culprit = said.culprit
    if expected["kind"] == "benign":
        return "clean" if culprit is None else "alarm"
    if culprit is None:
        return "right" if said.verdict == expected.get("verdict", "") else "missed"
    fits = any(culprit == name or culprit.startswith(name + ".") for name in expected["culprits"])
    return "right" if fits else "wrong"


def reduce_to_statistics(dump: Path, folder: Path) -> Path:
    """Copy a dump without its tensors: what the same run would have left with task statistics."""
    if folder.exists():
        shutil.rmtree(folder)
    for source in dump.rglob("*.json"):
        target = folder / source.relative_to(dump)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.name == "dump.json":
            content = json.loads(source.read_text())
            content["dump_data_dir"] = None
            content["task"] = "statistics"
            target.write_text(json.dumps(_without_data(content), indent=1))
        else:
            shutil.copyfile(source, target)
    return folder


def _without_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_data(item) for key, item in value.items() if key != "data_name"}
    return [_without_data(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
