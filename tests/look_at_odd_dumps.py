"""Give odd dumps to a command and report what became of them; run by test_odd_dumps.

    python tests/look_at_odd_dumps.py COMMAND SCRATCH COUNT [SEED]

The command is show, compare, blame, precheck or overflow. The dumps are ranks of one run, in the
formats of all tools, so that one worker process repeats the calls of all of them. A process of its
own, so that its memory can be looked at, and a fault of the processor's is seen.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from odd_dumps import SOUND, OddDump, Tool, write_odd_dump, write_other_run
from tensorprobe.cli import main as run_command

TOOLS: tuple[Tool, ...] = (
    "tensorprobe",
    "tensorprobe",
    "msprobe",
    "api_accuracy_checker",
    "ptdbg_ascend",
)
TASKS = ("statistics", "tensor")
# What nobody may be told of their dump.
FORBIDDEN = ("itself failed", "internal", "Traceback")


class Told:
    """What a command printed, and how it ended."""

    def __init__(self, *arguments: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.code = run_command(list(arguments))
        self.text = out.getvalue()
        self.everything = self.text + err.getvalue()


def write_dumps(folder: Path, count: int, seed: int, *, odd_names: bool) -> Iterator[OddDump]:
    for number in range(count):
        yield write_odd_dump(
            folder / "step0" / f"rank{number}",
            random.Random(seed * 1_000_003 + number),
            tool=TOOLS[number % len(TOOLS)],
            task=TASKS[number // len(TOOLS) % len(TASKS)],
            odd_names=odd_names,
        )


def problems_with(told: Told, codes: tuple[int, ...] = (0, 2)) -> Iterator[str]:
    if told.code not in codes:
        yield f"it ended with {told.code}"
    for text in FORBIDDEN:
        for line in told.everything.splitlines():
            if text in line:
                yield line[:300]


def rows_of(folder: Path, pattern: str) -> Iterator[dict[str, str]]:
    for path in sorted(folder.glob(pattern)):
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.DictReader(file)


def look(command: str, dump: OddDump, scratch: Path, number: int) -> Iterator[str]:
    """Yield what is wrong with what a command says of one dump."""
    chance = random.Random(number)
    other = write_other_run(dump, scratch / "other", chance)
    path, output = str(dump.path), scratch / "output"
    if command == "show":
        told = Told("show", path, *(["--json"] if number % 2 else []))
        yield from problems_with(told)
        yield from (f"{name} is not shown" for name in SOUND if name not in told.text)
        told = Told("show", path, chance.choice(SOUND))
        yield from problems_with(told)
    elif command == "compare":
        options = [["--first-diff"], ["--highlight"], ["--fuzzy"], ["--no-stack"]][number % 4]
        for partner in (path, str(other.path)):
            told = Told("compare", path, partner, "-o", str(output), "--format", "csv", *options)
            yield from problems_with(told)
            rows = {row["NPU Name"]: row for row in rows_of(output, "compare_result*.csv")}
            for name in SOUND:
                found = rows.get(f"{name}.input.0")
                # Checksums have no such columns; aligned by order, another call may be its partner.
                is_same = found is not None and found.get("NPU max") == found.get("Bench max")
                if not is_same and (found is None or "--fuzzy" not in options):
                    yield f"{name} is not compared"
        form = ("xlsx", "json")[number % 2]
        told = Told("compare", path, str(other.path), "-o", str(output), "--format", form)
        yield from problems_with(told)
    else:
        for pair in ((path, path), (path, str(other.path)), (str(other.path), path)):
            told = Told("blame", *pair, *(["--json"] if number % 2 else []))
            yield from problems_with(told)
            if not any(word in told.text for word in ("verdict", "culprit")):
                yield "blame gives no answer"


def look_at_all(command: str, folder: Path, scratch: Path, count: int) -> Iterator[str]:
    """Yield what is wrong with what precheck or overflow says of all dumps."""
    output = scratch / "output"
    told = Told(command, str(folder), "-o", str(output), "--timeout", "60")
    # That one call is found wrong is an answer, too.
    yield from problems_with(told, (0, 1, 2))
    if command == "overflow":
        made = told.text.count("The Tensor.exp.700 overflow is a normal overflow.")
        # api_accuracy_checker keeps no results, and lists nothing but overflows.
        if made != count:
            yield f"{made} of {count} sound overflows are judged"
        return
    passed: Counter[str] = Counter()
    for row in rows_of(output, "accuracy_checking_result*.csv"):
        # At L2 a call keeps its direction.
        passed[row["API name"].removesuffix(".forward")] += row["Forward Test Success"] == "pass"
        yield from (str(row)[:300] for text in FORBIDDEN if text in str(row))
    # ptdbg_ascend keeps no number among the arguments, such as the 2 that is added.
    wanted = {"Functional.relu.700": count, "Torch.add.700": count - count // len(TOOLS)}
    for name, calls in wanted.items():
        if passed[name] != calls:
            yield f"{name} passes in {passed[name]} of {calls} dumps"


def main() -> None:
    command, scratch, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    warnings.simplefilter("ignore")
    folder = scratch / "dumps"
    failures: list[str] = []
    dumps = list(write_dumps(folder, count, seed, odd_names=True))
    if command in ("precheck", "overflow"):
        failures += look_at_all(command, folder, scratch, count)
    else:
        for number, dump in enumerate(dumps):
            place = scratch / str(number)
            try:
                failures += (
                    f"dump {number}: {text}" for text in look(command, dump, place, number)
                )
            except Exception:  # noqa: BLE001 - it is what is looked for
                failures.append(f"dump {number}: {traceback.format_exc()[-1500:]}")
    with Path("/proc/self/status").open() as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    sys.stdout.write(json.dumps({"failures": failures, "peak": peak}))


if __name__ == "__main__":
    main()
