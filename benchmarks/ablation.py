"""Switch off, halve and double every rule and tolerance of blame in turn, and score what that does.

    python benchmarks/ablation.py PAIRS... [--portbench FOLDER] [--only TEXT] [--markdown]

PAIRS are folders of unpacked pairs, as `benchmarks/blame.py` takes them; each is asked with its
data and with its statistics alone. FOLDER is what `portbench/run.py --out FOLDER` left. A row says
which answers change: faults that are named no more (or are now), and sound pairs that are accused
(or are no more). What changes no answer buys nothing that these pairs show.

Replays and distances are the same for most switches, so they are made once. Everything runs in this
process, without the limits that keep a hostile dump in check: for pairs of one's own alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

from blame import Said, judge, reduce_to_statistics
from tensorprobe.blame import analyse
from tensorprobe.blame.agreement import Meter
from tensorprobe.blame.conclusion import Conclusion
from tensorprobe.blame.links import Use
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.replays import Replays
from tensorprobe.blame.run import investigate_parts
from tensorprobe.blame.senders import find_sender
from tensorprobe.blame.split import split_call
from tensorprobe.compare.evidence import PartEvidence
from tensorprobe.errors import RebuildError, TensorprobeError
from tensorprobe.pairing.call_pairs import pair_records
from tensorprobe.pairing.gradient_order import recorder_of_nodes
from tensorprobe.pairing.ranks import pair_parts
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.tolerance_table import all_tolerances
from tensorprobe.store import open_dump

SHARED = Path(__file__).parents[2] / "shared" / "portbench"

Answer = tuple[dict[str, Any] | None, str]


@dataclass(frozen=True)
class Case:
    """A pair of dumps, and who says whether an answer about it is right.

    Attributes:
        name: where it is from and how it is asked.
        parts: both runs' ranks and steps.
        missing: those that only one run has.
        outcome: right, wrong, missed, clean or alarm, of a conclusion.
    """

    name: str
    parts: Sequence[PartEvidence]
    missing: Sequence[str]
    outcome: Callable[[Conclusion], str]


@dataclass(frozen=True)
class Switch:
    """One thing that is changed: a rule that is left out, or a number that is another one."""

    name: str
    change: str
    module: ModuleType
    attribute: str
    value: Any

    @contextlib.contextmanager
    def thrown(self) -> Iterator[None]:
        """Have the code use it for a while."""
        before = getattr(self.module, self.attribute)
        setattr(self.module, self.attribute, self.value)
        try:
            yield
        finally:
            setattr(self.module, self.attribute, before)


def read_pair(folder: Path, scratch: Path) -> Iterator[Case]:
    """Yield a pair with its data, and the same with statistics alone."""
    expected = json.loads((folder / "expected.json").read_text())

    def outcome(conclusion: Conclusion) -> str:
        return judge(expected, Said(conclusion.culprit, conclusion.verdict))

    yield open_case(f"{folder.name} data", folder / "npu", folder / "bench", outcome)
    place = scratch / f"{folder.parent.name}-{folder.name}"
    mine, other = (reduce_to_statistics(folder / side, place / side) for side in ("npu", "bench"))
    yield open_case(f"{folder.name} statistics", mine, other, outcome)


def read_portbench(folder: Path) -> Iterator[Case]:
    """Yield the pairs of a portbench that was made before."""
    sys.path.insert(0, str(SHARED))
    portbench = importlib.import_module("run")
    listed = subprocess.run(
        [sys.executable, str(SHARED / "worker.py"), "--list"],
        capture_output=True,
        text=True,
        check=True,
        env=portbench.environment(),
    )
    options = argparse.Namespace(out=str(folder))
    for scenario in json.loads(listed.stdout):
        mine, other = (
            Path(portbench.dump_dir(str(folder), scenario["name"], side, "tensor:mix"))
            for side in ("cand", "ref")
        )
        if not (mine.is_dir() and other.is_dir()):
            continue

        def outcome(conclusion: Conclusion, scenario: Any = scenario) -> str:
            told = conclusion.to_json()
            first = told["suspects"][0] if conclusion.culprit else None
            module = portbench.module_of(options, scenario, first) if first else ""
            score = str(portbench.score(scenario, told, module, conclusion.summary))
            if scenario["benign"]:
                return "alarm" if score == "false alarm" else "clean"
            return {"near": "right", "miss": "missed", "refused": "missed"}.get(score, score)

        yield open_case(f"{scenario['name']} port", mine, other, outcome)


def open_case(
    name: str, candidate: Path, reference: Path, outcome: Callable[[Conclusion], str]
) -> Case:
    pairs, missing = pair_parts(open_dump(candidate), open_dump(reference))
    return Case(name, [PartEvidence(*pair, None, {}) for pair in pairs], missing, outcome)


class Memory:
    """What stays the same whatever switch is thrown: measured distances, and most replays.

    Attributes:
        is_fresh: whether calls are replayed again, as a tolerance of replays is another one.
        read: the tolerances that were read at all: others are of other rooms.
        read_by_replays: those that were read while calls were replayed.
    """

    def __init__(self) -> None:
        self.is_fresh = False
        self.read: set[str] = set()
        self.read_by_replays: set[str] = set()
        self._is_replaying = False
        self._answers: dict[str, Answer] = {}
        self._distances: dict[Any, Any] = {}
        self._sides: dict[Path, RecordedRun] = {}

    def install(self) -> None:
        """Have blame replay in this process, and ask this memory first."""
        memory, measure = self, Meter.__init__

        class Watched(ModuleType):
            def __getattribute__(self, name: str) -> Any:
                if name.isupper():
                    memory.read.add(name)
                    if memory._is_replaying:
                        memory.read_by_replays.add(name)
                return super().__getattribute__(name)

        def meter(
            self: Meter, candidate: RecordedRun, reference: RecordedRun, known: Any = None
        ) -> None:
            measure(self, candidate, reference, known)
            key = (candidate.part.path, reference.part.path)
            self._measurer.distances = memory._distances.setdefault(key, self._measurer.distances)

        def answers(self: Replays, orders: Any, is_wanted: Any = lambda order: True) -> Any:
            sides = [memory._side(side) for side in self._sides]
            for order in orders:
                if is_wanted(order):
                    yield order.name, *memory.ask(order, *sides)

        tolerances.__class__ = Watched
        Meter.__init__ = meter  # type: ignore[method-assign]
        Replays._answers = answers  # type: ignore[method-assign]

    def _side(self, side: RecordedRun) -> RecordedRun:
        return self._sides.setdefault(side.part.path, RecordedRun(side.part, on_demand=True))

    def ask(self, order: Any, ours: RecordedRun, theirs: RecordedRun) -> Answer:
        """Return what a replay shows, or why there is none."""
        key = repr((ours.part.path, theirs.part.path, order.name, order.more))
        if self.is_fresh:
            return replay(order, ours, theirs)
        if key not in self._answers:
            self._is_replaying = True
            self._answers[key] = replay(order, ours, theirs)
            self._is_replaying = False
        return self._answers[key]


def replay(order: Any, ours: RecordedRun, theirs: RecordedRun) -> Answer:
    """Do what blame's worker does with an order."""
    more = order.more
    mine, other = ours.calls[more["candidate"]], theirs.calls[more["reference"]]
    of_node = recorder_of_nodes(ours.part.info, theirs.part.info)
    pair = pair_records(more["position"], mine, other, of_node)
    try:
        if more["kind"] == "sender":
            uses = [Use(*use) for use in more["uses"]]
            return {"sender": find_sender(pair, uses, ours, theirs, more["work"])}, ""
        return split_call(pair, ours, theirs).to_json(), ""
    except RebuildError as err:
        return None, str(err)
    except Exception as err:  # noqa: BLE001 - as the worker does
        return None, f"{order.name} cannot be replayed: {type(err).__name__}: {err}"
    finally:
        ours.forget()
        theirs.forget()


def switches() -> Iterator[Switch]:
    """Yield every rule left out, and every tolerance halved and doubled."""
    # `all_tolerances` reads each of them, too.
    read = frozenset(MEMORY.read)
    for name in ("LONE_CALL_RULES", "SHARED_CALL_RULES", "RUN_RULES"):
        rules = getattr(analyse, name)
        for rule in rules:
            others = tuple(other for other in rules if other is not rule)
            yield Switch(rule.__name__, "left out", analyse, name, others)
    for tolerance in all_tolerances():
        if tolerance.name not in read:
            continue
        for change, factor in (("halved", 0.5), ("doubled", 2)):
            value = tolerance.value * factor
            if isinstance(tolerance.value, int):
                value = int(value)
            yield Switch(
                tolerance.name, f"{change}: {value:.3g}", tolerances, tolerance.name, value
            )


def ask_all(cases: Sequence[Case]) -> dict[str, str]:
    """Return the outcome of every case, and of wrong accusations whether they are certain."""
    found = {}
    for case in cases:
        try:
            conclusion = investigate_parts(case.parts, missing=case.missing).conclusion
            outcome = case.outcome(conclusion)
        except (TensorprobeError, ArithmeticError, ValueError) as err:
            # A number may be one with which nothing works.
            found[case.name] = type(err).__name__
            continue
        first = conclusion.first
        is_sure = first is not None and first.confidence == "certain"
        found[case.name] = (
            f"{outcome}, certain" if is_sure and outcome in ("wrong", "alarm") else outcome
        )
    return found


def score(number: int) -> str:
    """Return how answers change under a switch, in words; empty if none does."""
    switch = SWITCHES[number]
    MEMORY.is_fresh = switch.attribute in MEMORY.read_by_replays
    with switch.thrown():
        outcomes = ask_all(CASES)
    changes: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome != BASELINE[name]:
            changes.setdefault(f"{BASELINE[name]} → {outcome}", []).append(name)
    return "; ".join(
        f"{len(names)} {change} ({', '.join(names[:3])}{', …' * (len(names) > 3)})"
        for change, names in sorted(changes.items())
    )


def count(outcomes: Iterable[str]) -> str:
    counts = Counter(outcomes)
    return ", ".join(f"{counts[key]} {key}" for key in sorted(counts))


MEMORY = Memory()
CASES: list[Case] = []
BASELINE: dict[str, str] = {}
SWITCHES: list[Switch] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="+", type=Path, help="folders of unpacked pairs")
    parser.add_argument("--portbench", type=Path, help="what portbench/run.py --out wrote")
    parser.add_argument(
        "--only", default="", help="only rules and tolerances whose name holds this"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the rows of a Markdown table"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for folder in arguments.pairs:
            for path in sorted(folder.glob("*/expected.json")):
                CASES.extend(read_pair(path.parent, Path(scratch)))
        if arguments.portbench is not None:
            CASES.extend(read_portbench(arguments.portbench))
        # A process for each core does the work.
        torch.set_num_threads(1)
        MEMORY.install()
        BASELINE.update(ask_all(CASES))
        print(f"{len(CASES)} answers: {count(BASELINE.values())}", flush=True)
        SWITCHES.extend(switch for switch in switches() if arguments.only in switch.name)
        # Children inherit what was read and replayed.
        with multiprocessing.get_context("fork").Pool(arguments.processes) as pool:
            told = pool.imap(score, range(len(SWITCHES)))
            for switch, changes in zip(SWITCHES, told, strict=True):
                if arguments.markdown:
                    print(
                        f"| `{switch.name}` | {switch.change} | {changes or 'nothing'} |",
                        flush=True,
                    )
                else:
                    print(f"{switch.name:<24} {switch.change:<18} {changes or '-'}", flush=True)


if __name__ == "__main__":
    main()
