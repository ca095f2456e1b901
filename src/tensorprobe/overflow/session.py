"""Judge the overflows of a whole dump and write them down.

open_dump ─► find_overflows ─► a worker process repeats each ─► csv ─► OverflowReport
         └► find_origins ─► json, if wanted

A call that ends the worker or hangs is not judged; another worker goes on with the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprobe.errors import ConfigError
from tensorprobe.names import ApiCall, is_call_name, parse_call
from tensorprobe.overflow.origin import Origin, find_origins
from tensorprobe.overflow.origin_file import write_origins
from tensorprobe.overflow.select import FoundOverflow, find_overflows, range_text
from tensorprobe.overflow.verdict import Replay, Verdict
from tensorprobe.records import Gap
from tensorprobe.replay.memory import require_memory
from tensorprobe.replay.pool import Order, run_orders
from tensorprobe.report.csv_table import write_csv
from tensorprobe.report.overflow_table import OverflowRow, overflow_table
from tensorprobe.store import RankDump, open_dump

__all__ = ["JudgedOverflow", "OverflowReport", "overflow_dump"]

OnJudged = Callable[["JudgedOverflow"], None]


@dataclass(frozen=True, slots=True)
class JudgedOverflow:
    """One overflow and what is said of it.

    Attributes:
        part: the step and rank, `step0/rank1`.
        name: the call's name in the dump.
        shown: its name in the sentence: without `.forward`, as in the older tools.
        found: how it was found.
        replay: what repeating it showed.
    """

    part: str
    name: str
    shown: str
    found: FoundOverflow
    replay: Replay

    @property
    def verdict(self) -> Verdict:
        """Whether the numbers explain the overflow."""
        return self.replay.verdict

    @property
    def sentence(self) -> str:
        """The verdict in words; of one that is judged, in those of the older tools."""
        if self.verdict == "normal":
            return f"The {self.shown} overflow is a normal overflow."
        if self.verdict == "abnormal":
            return f"The {self.shown} overflow is an abnormal overflow."
        return f"The {self.shown} overflow is not judged: {self.replay.message}"


@dataclass(frozen=True, slots=True)
class OverflowReport:
    """What was found in a dump.

    Attributes:
        overflows: every overflow, in the order of the dump.
        origins: the first value of each rank that is not finite, the origin of all first.
        path: the csv.
        gaps: what of the dump could not be read.
        origins_path: the json of the calls that made such a value; None if it was not wanted or
            there are none.
    """

    overflows: tuple[JudgedOverflow, ...]
    origins: tuple[Origin, ...]
    path: Path
    gaps: tuple[Gap, ...]
    origins_path: Path | None = None

    @property
    def has_abnormal(self) -> bool:
        """Whether any overflow is a fault of the operation."""
        return any(overflow.verdict == "abnormal" for overflow in self.overflows)


def overflow_dump(
    dump: str | Path,
    output_path: str | Path = ".",
    *,
    device: str | None = None,
    step: int | None = None,
    rank: int | None = None,
    imports: tuple[str, ...] = (),
    timeout: float = 300.0,
    memory: float | None = None,
    origins_json: bool = False,
    on_judged: OnJudged | None = None,
) -> OverflowReport:
    """Judge every overflow of a dump, and find where the first one came from.

    Args:
        dump: any dump that `open_dump` opens; forward_info_*.json of api_accuracy_checker too.
        output_path: the folder of the csv.
        device: also repeat each call there, `cuda:0`.
        step: only this step.
        rank: only this rank.
        imports: modules that register operators of the user's own.
        timeout: how many seconds one call may take.
        memory: how many GiB the process that repeats them may take; None: what there is.
        origins_json: also write anomaly_analyze_{time}.json, as nan_analyze of msprobe does.
        on_judged: told of each overflow as soon as it is judged.

    Raises:
        DumpError: the dump cannot be opened, or has no such step or rank.
        ConfigError: there is no such device.
        RebuildError: a module of `imports` cannot be imported.
        ReportError: a file cannot be written.
    """
    if not timeout > 0:
        raise ConfigError(f"timeout is {timeout}, wanted a number of seconds over 0")
    require_memory(memory)
    # The worker opens it by the same path and knows its parts by theirs.
    place = Path(dump).absolute()
    opened = open_dump(place)
    parts = [
        part
        for part in opened.parts
        if (step is None or part.info.step == step) and (rank is None or part.info.rank == rank)
    ] or [opened.part(step=step, rank=rank)]
    waiting = [(part, found) for part in parts for found in find_overflows(part)]
    settings: dict[str, Any] = {
        "dump": str(place),
        "repeats": device is not None,
    }
    judged: list[JudgedOverflow] = []
    rows: list[OverflowRow] = []
    answers = run_orders(
        [Order(str(part.path), found.name) for part, found in waiting],
        settings,
        devices=[device or "cpu"],
        timeout=timeout,
        module="tensorprobe.overflow.worker",
        read=lambda told: Replay(**told),
        imports=imports,
        memory=memory,
        # Nothing of a device stays taken, and no code of the user's stays in it.
        may_wait=device is None and not imports,
    )
    # One worker answers in the order of its orders. Closed at once on any error: it must not
    # outlive that.
    with closing(answers):
        for (part, found), (_, answer) in zip(waiting, answers, strict=True):
            replay = (
                Replay("not judged", message=answer.loss) if answer.found is None else answer.found
            )
            overflow = JudgedOverflow(part.label, found.name, _shown(found.name), found, replay)
            judged.append(overflow)
            rows.append(_row_of(part, overflow))
            if on_judged is not None:
                on_judged(overflow)
    folder = Path(output_path)
    path = folder / f"overflow_check_result_{time.strftime('%Y%m%d%H%M%S')}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(path, overflow_table(rows))
    origins = tuple(find_origins(parts))
    origins_path = folder / f"anomaly_analyze_{time.time_ns()}.json"
    has_json = origins_json and write_origins(origins_path, origins, parts)
    return OverflowReport(
        tuple(judged),
        origins,
        path,
        (*opened.unopened, *(gap for part in parts for gap in part.known_gaps)),
        origins_path if has_json else None,
    )


def _row_of(part: RankDump, overflow: JudgedOverflow) -> OverflowRow:
    extents, replay = overflow.found.extents, overflow.replay
    return OverflowRow(
        part=overflow.part,
        name=overflow.name,
        kind=overflow.found.kind,
        verdict=overflow.verdict,
        on_cpu=replay.on_cpu,
        exact=replay.exact,
        on_device=replay.on_device,
        inputs=range_text(extents.inputs),
        outputs=range_text(extents.outputs),
        message=replay.message,
        stack=_line_of(part, overflow.name),
    )


def _line_of(part: RankDump, name: str) -> str:
    """Return the line of the program that made a call; not one of torch, where there is another."""
    stack = part.stack(name)
    if not stack:
        return ""
    frame = next((frame for frame in stack if "/torch/" not in frame.path), stack[0])
    return f"{frame.path}:{frame.line} {frame.source}"


def _shown(name: str) -> str:
    call = parse_call(name) if is_call_name(name) else None
    if isinstance(call, ApiCall) and call.direction == "forward":
        return f"{call.api_type}.{call.api_name}.{call.number}"
    return name
