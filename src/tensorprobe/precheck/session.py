"""Pre-check a whole dump: plan, spread over workers, write in order, resume.

open_dump ─► plan_calls ─► run_orders ─► ResultFiles, in the order of the dump ─► PrecheckReport
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorprobe.errors import ConfigError, DumpError, TensorprobeError
from tensorprobe.precheck.outcome import CallResult
from tensorprobe.precheck.plan import PlannedCall, describe_choice, plan_calls
from tensorprobe.precheck.results import ResultFiles, cell_of, make_folder, new_stamp, stamp_of
from tensorprobe.precheck.run_record import RunRecord, Told, fingerprint
from tensorprobe.records import Gap
from tensorprobe.replay.memory import require_memory
from tensorprobe.replay.pool import Answer, Order, run_orders
from tensorprobe.store import RankDump, open_dump

__all__ = ["CheckedLine", "PrecheckReport", "precheck_dump"]

_STANDS = "stands for"
_VERDICTS = ("pass", "warning", "error", "SKIP")
OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class CheckedLine:
    """One call in the report: as in the result file, how bad it is, and what it took.

    `older_forward` and `older_backward` are what the rule of the older tools says: pass, fail, or
    blank where it says nothing (docs/precheck.md).
    """

    part: str
    name: str
    forward: str
    backward: str
    message: str
    excess: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    older_forward: str = ""
    older_backward: str = ""

    @property
    def older_verdict(self) -> str:
        """Pass or fail by the rule of the older tools, the worse one of both directions."""
        found = (self.older_forward, self.older_backward)
        return "fail" if "fail" in found else "pass" if "pass" in found else ""

    @property
    def verdict(self) -> str:
        """The worse one of both directions; SKIP only where nothing was judged."""
        verdicts = [verdict for verdict in (self.forward, self.backward) if verdict in _VERDICTS]
        for worst in ("error", "warning", "pass"):
            if worst in verdicts:
                return worst
        return "SKIP"


@dataclass(frozen=True, slots=True)
class PrecheckReport:
    """What a pre-check found.

    Attributes:
        lines: every checked call, in the order of the dump.
        result_paths: the files with one row per call, one for each part of the dump.
        details_paths: the files with one row per output.
        stands_for: how many calls these were in the dump; more than `lines` with dedupe.
        gaps: what of the dump could not be read.
        seconds: how long it took.
        device_seconds: time in the calls on the devices.
        reference_seconds: time in the calls on the reference side.
        phases: seconds that the workers spent on each phase; see `stopwatch`.
        notes: what a reader has to know beside: which calls were not to be checked.
    """

    lines: tuple[CheckedLine, ...]
    result_paths: tuple[Path, ...]
    details_paths: tuple[Path, ...]
    stands_for: int
    gaps: tuple[Gap, ...]
    seconds: float
    device_seconds: float
    reference_seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many calls got each verdict."""
        found = Counter(line.verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in _VERDICTS}

    @property
    def older_counts(self) -> dict[str, int]:
        """How many calls pass and fail by the rule of the older tools.

        The others it does not judge, and rows of a resumed file that has no column for it.
        """
        found = Counter(line.older_verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in ("pass", "fail")}

    @property
    def has_errors(self) -> bool:
        """Whether any call failed."""
        return any(line.verdict == "error" for line in self.lines)

    def worst_first(self) -> list[CheckedLine]:
        """Return the calls that failed or are doubtful, worst first."""
        found = [line for line in self.lines if line.verdict in ("error", "warning")]
        return sorted(found, key=lambda line: (line.verdict != "error", -line.excess))


def precheck_dump(
    dump: str | Path,
    output_path: str | Path | None = None,
    *,
    devices: Sequence[str] = (),
    data: str | None = None,
    save_errors: str | Path | None = None,
    resume: str | Path | None = None,
    jobs: int = 1,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    dedupe: bool = False,
    seed: int = 1234,
    timeout: float = 300.0,
    imports: Sequence[str] = (),
    memory: float | None = None,
    step: int | None = None,
    rank: int | None = None,
    jit_compile: bool | None = None,
    backward: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> PrecheckReport:
    """Check every recorded call of a dump on its own; see `tensorprobe.precheck`.

    Raises:
        DumpError: the dump or the result to resume cannot be read or used, or that was begun for
            another dump, data, seed or device.
        ConfigError: an option has a value that it cannot have, or no call fits; also `resume`
            with an `output_path` other than its folder.
        ReportError: a folder or file of the results cannot be written.
    """
    _check_options(data, jobs, timeout, devices)
    require_memory(memory)
    start = time.monotonic()
    # Workers open it by the same path and know its parts by theirs.
    place = Path(dump).absolute()
    beside = None if backward is None else Path(backward).absolute()
    opened = open_dump(place, backward=beside)
    parts = [
        part
        for part in opened.parts
        if (step is None or part.info.step == step) and (rank is None or part.info.rank == rank)
    ] or [opened.part(step=step, rank=rank)]
    folder = _folder_of(output_path, resume)
    stamp = new_stamp(folder) if resume is None else stamp_of(Path(resume))
    settings: dict[str, Any] = {
        "dump": str(place),
        "backward": None if beside is None else str(beside),
        "data": data or "auto",
        "seed": seed,
        "save_errors": None if save_errors is None else str(Path(save_errors).absolute()),
    }
    plans = [plan_calls(part, include=include, exclude=exclude, dedupe=dedupe) for part in parts]
    if not any(plans):
        raise _nothing_to_check(dump, parts, include, exclude)
    make_folder(folder)
    if save_errors is not None:
        make_folder(Path(save_errors))
    told = Told(
        str(place),
        tuple((part.label, fingerprint(part)) for part in parts),
        data or "auto",
        seed,
        jit_compile,
    )
    asked = list(devices) or ["auto"]
    seconds = [0.0, 0.0]
    phases: Counter[str] = Counter()
    # By what is wrong, so that several workers report nothing twice.
    unread: dict[str, Gap] = {}
    with ExitStack() as stack:
        # Before the first row: whoever kills this must be able to resume it.
        resumed = None if resume is None else Path(resume)
        record = stack.enter_context(RunRecord(folder, stamp, told, asked, resumed))
        settings["jit_compile"] = record.jit_compile
        checked: dict[str, _Part] = {}
        for part, planned in zip(parts, plans, strict=True):
            label = part.label.replace("/", "_") if len(opened.parts) > 1 else ""
            files = stack.enter_context(ResultFiles(folder, stamp, label))
            checked[str(part.path)] = _Part(part, planned, files)
        orders = [order for part in checked.values() for order in part.orders()]
        total = sum(len(part.planned) for part in checked.values())
        results = run_orders(
            orders,
            settings,
            devices=asked,
            jobs=jobs,
            timeout=timeout,
            module="tensorprobe.precheck.worker",
            read=CallResult.from_json,
            imports=imports,
            memory=memory,
            # Nothing of a device stays taken, no code of the user's stays in it, and it is confined
            # for good when its first job begins.
            may_wait=set(asked) == {"cpu"} and not imports and save_errors is None,
            on_device=record.meet_device,
        )
        # Closed at once on any error: workers must not outlive it.
        for done, (order, answer) in enumerate(
            stack.enter_context(closing(results)), total - len(orders) + 1
        ):
            result = _result_of(order, answer)
            checked[order.part].add(result)
            unread.update((text, Gap(Path(order.part), text)) for text in result.unread)
            seconds[0] += result.device_seconds
            seconds[1] += result.reference_seconds
            phases.update(result.phases)
            if on_progress is not None:
                on_progress(done, total, order.name)
    return PrecheckReport(
        tuple(line for part in checked.values() for line in part.lines),
        tuple(part.files.result_path for part in checked.values()),
        tuple(part.files.details_path for part in checked.values()),
        sum(call.stands_for for part in checked.values() for call in part.planned),
        (*opened.unopened, *_gaps_of(parts, unread)),
        time.monotonic() - start,
        seconds[0],
        seconds[1],
        dict(phases),
        tuple(describe_choice(parts, include, exclude)),
    )


def _gaps_of(parts: Sequence[RankDump], unread: Mapping[str, Gap]) -> Iterator[Gap]:
    known = {gap.problem: gap for part in parts for gap in part.known_gaps}
    yield from known.values()
    yield from (gap for problem, gap in unread.items() if problem not in known)


def _result_of(order: Order, answer: Answer) -> CallResult:
    if answer.found is None:
        return CallResult(order.name, "error", message=answer.loss, excess=float("inf"))
    result: CallResult = answer.found
    return result


def _note_of(call: PlannedCall) -> str:
    """Return what is said of a call that stands for others; blank of any other."""
    return (
        f"{_STANDS} {call.stands_for} calls that differ in values alone"
        if call.stands_for > 1
        else ""
    )


class _Part:
    """One part of the dump: its plan, its files, and the results that wait for their turn."""

    def __init__(self, dump: RankDump, planned: list[PlannedCall], files: ResultFiles) -> None:
        self.dump = dump
        self.planned = planned
        self.files = files
        self.lines: list[CheckedLine] = []
        self._early: dict[str, CallResult] = {}
        shown = [cell_of(call.shown) for call in planned]
        done = [row[0] for row in self.files.done]
        if done != shown[: len(done)]:
            raise DumpError(
                f"{self.files.result_path} holds other calls than this dump with these options; "
                "resume with the same dump and options, or start anew without --resume"
            )
        for call, row in zip(planned, self.files.done, strict=False):
            name, forward, backward, message, *older = row
            stands = _STANDS in message
            if stands != (call.stands_for > 1) or not message.endswith(_note_of(call)):
                raise DumpError(
                    f"{self.files.result_path} was begun {'with' if stands else 'without'} "
                    f"--dedupe or for other calls ({name}); resume with the same dump and options"
                )
            line = CheckedLine(dump.label, name, forward, backward.strip(), message)
            if older:
                line = replace(line, older_forward=older[0], older_backward=older[1])
            self.lines.append(line)

    def orders(self) -> list[Order]:
        """Return what is still to be checked."""
        path = str(self.dump.path)
        return [Order(path, call.name) for call in self.planned[len(self.lines) :]]

    def add(self, result: CallResult) -> None:
        """Take a result; write all whose turn has come."""
        self._early[result.name] = result
        while len(self.lines) < len(self.planned):
            call = self.planned[len(self.lines)]
            ready = self._early.pop(call.name, None)
            if ready is None:
                return
            message = "; ".join(text for text in (ready.message, _note_of(call)) if text)
            self.files.write(call.shown, replace(ready, message=message))
            self.lines.append(
                CheckedLine(
                    self.dump.label,
                    call.shown,
                    ready.forward,
                    ready.backward,
                    message,
                    ready.excess,
                    ready.phases,
                    ready.older_forward,
                    ready.older_backward,
                )
            )


def _folder_of(output_path: str | Path | None, resume: str | Path | None) -> Path:
    """Return where the results go: on resuming, to those that are there."""
    if resume is None:
        return Path("." if output_path is None else output_path)
    if not Path(resume).exists():
        raise DumpError(f"{resume} does not exist; there is nothing to resume")
    folder = Path(resume).parent
    if output_path is not None and Path(output_path).resolve() != folder.resolve():
        raise ConfigError(
            f"a resumed run goes on in the files that it has, in {folder}; leave out the folder "
            f"{output_path}"
        )
    return folder


def _nothing_to_check(
    dump: str | Path,
    parts: Sequence[RankDump],
    include: Sequence[str],
    exclude: Sequence[str],
) -> TensorprobeError:
    """Return why no call is left: the patterns, or there is none."""
    if (include or exclude) and any(plan_calls(part) for part in parts):
        return ConfigError(
            "no call of the dump fits include and exclude "
            f"({', '.join((*include, *(f'not {name}' for name in exclude)))}); names look like "
            "Functional.linear.0.forward"
        )
    levels = " and ".join(sorted({part.info.level for part in parts if part.info.level}))
    return DumpError(
        f"{dump}{f' (level {levels})' if levels else ''} holds no function call; modules are not "
        "checked, only the calls inside them: capture at level L1 or mix"
    )


def _check_options(data: str | None, jobs: int, timeout: float, devices: Sequence[str]) -> None:
    if data not in (None, "real", "random"):
        raise ConfigError(f"data is {data!r}, wanted 'real' or 'random'")
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}, wanted 1 or more")
    if not timeout > 0:
        raise ConfigError(f"timeout is {timeout}, wanted a number of seconds over 0")
    if isinstance(devices, str):
        raise ConfigError(f"devices is {devices!r}, wanted a list such as ['cuda:0']")
