"""Compare one rank of two runs: stream its rows from the dumps into the result files.

    Matcher ─► windows of calls ─► Measurer ─► RowMaker ─► Highlighter ─► the writers

Rows are made as the writer asks for them, so a comparison needs little more memory than the dumps'
index; only where several formats are wanted are the rows kept.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeAlias

from tensorprobe.compare.advise import Failure, advise
from tensorprobe.compare.call_rows import CallRows
from tensorprobe.compare.cells import is_plain, number_cell
from tensorprobe.compare.evidence import PartEvidence, look_at
from tensorprobe.compare.first_difference import FirstDifference
from tensorprobe.compare.highlight import Highlighter
from tensorprobe.compare.measure import DataDistance, Measured, Measurer, bytes_of
from tensorprobe.compare.options import Options
from tensorprobe.compare.plain_rows import load_plain_rows
from tensorprobe.compare.result import PartResult, Tally
from tensorprobe.compare.rows import RowMaker, is_recorded, wants_data
from tensorprobe.compare.sheets import inputs_table, unmatched_table, write_summary
from tensorprobe.pairing.match import MatchedCall, Matcher, Pair
from tensorprobe.pairing.ranks import PartPair
from tensorprobe.pairing.run_order import is_filled_later
from tensorprobe.pairing.value_names import row_name
from tensorprobe.records import Gap
from tensorprobe.report.compare_columns import Mode, columns_of
from tensorprobe.report.csv_table import write_csv
from tensorprobe.report.json_table import write_json
from tensorprobe.report.table import Cell, Fill, Table
from tensorprobe.report.verdict_text import count_words
from tensorprobe.report.xlsx import ROWS_PER_SHEET, write_xlsx
from tensorprobe.store import RankDump
from tensorprobe.store.leaves import Leaf
from tensorprobe.system.clean_text import clean_text
from tensorprobe.system.thread_pool import start_thread

__all__ = ["PartComparison", "PartFiles", "mode_of"]

_LOG = logging.getLogger("tensorprobe")
_PAIRS_AT_ONCE = 4096
# Fewer calls than these cannot fill a sheet, so their rows need no counting beforehand.
_CALLS_PER_SHEET = 20_000
_CALLS_TO_SEE = 200
_CALLS_PER_TELL = 500
# Measuring these takes longer than importing what names the culprit.
_BYTES_TO_PREPARE = 512 << 20
_SHOWN_NOTES = 20
_WITH_DATA = frozenset(("tensor", "overflow_check"))
_LOST_DATA = (
    "the folder with its tensors is missing or may not be opened; what the file itself holds of "
    "them was compared"
)


# Gives, for a window of calls, what was measured of each of their pairs.
_Results: TypeAlias = Callable[[list[MatchedCall]], Iterator[Measured]]


class PartFiles(NamedTuple):
    """Where one rank's results go: a folder, the beginning of the names, and their end."""

    folder: Path
    stem: str
    timestamp: str
    rank: str

    def path(self, suffix: str) -> Path:
        """Return the path of the table in one format."""
        return self.folder / f"{self.stem}_{self.timestamp}{suffix}"

    def advice(self) -> Path:
        """Return the path of the advice."""
        return self.folder / f"advisor{self.rank}_{self.timestamp}.txt"

    def summary(self) -> Path:
        """Return the path of what a workbook has in its small sheets."""
        return self.folder / f"compare_summary{self.rank}_{self.timestamp}.json"

    def states(self) -> Path:
        """Return the path of the JSON with every call's state."""
        return self.folder / f"compare_result{self.rank or '_rank'}_{self.timestamp}.json"


def mode_of(candidate: RankDump, reference: RankDump) -> Mode:
    """Tell what two dumps have in common: real data, checksums, or statistics."""
    parts = (candidate, reference)
    if all(part.info.task in _WITH_DATA and not _lost_data(part) for part in parts):
        return "tensor"
    return "md5" if _has_checksums(candidate) and _has_checksums(reference) else "statistics"


def _has_checksums(part: RankDump) -> bool:
    tensors = (leaf for leaf in _first_leaves(part) if leaf.kind == "tensor")
    return any(leaf.checksum is not None for leaf in islice(tensors, 1))


def _lost_data(part: RankDump) -> bool:
    """Whether a dump's tensors were left behind: who copies a dump.json alone has statistics."""
    return not part.has_data_folder and any(leaf.data_name for leaf in _first_leaves(part))


def _first_leaves(part: RankDump) -> Iterator[Leaf]:
    return (leaf for call in islice(part.read_leaves(), _CALLS_TO_SEE) for leaf in call.leaves)


class PartComparison:
    """The comparison of one rank.

    Attributes:
        node: the first call whose output fails, if that was asked for.
    """

    def __init__(self, pair: PartPair, options: Options) -> None:
        self._pair, self._options = pair, options
        self.mode = mode_of(pair.candidate, pair.reference)
        has_stack = options.stack
        if has_stack is None:
            has_stack = any(pair.candidate.stack(name) for name in pair.candidate.names[:50])
        self.titles = columns_of(self.mode, with_stack=has_stack)
        self.tally = Tally()
        self._row_count = 0
        self.node: dict[str, Any] | None = None
        self._stacks = pair.candidate if has_stack else None
        plain = load_plain_rows()
        self._matcher = Matcher(
            pair.candidate,
            pair.reference,
            fuzzy=options.fuzzy,
            mapping=options.mapping,
            pair_alike=None if plain is None else plain.alike_pairs,
        )
        self._fills: dict[int | tuple[int, int], Fill] = {}
        self._differences: FirstDifference | None = None
        self._last_unmatched: str | None = None
        # Of gradients that stand where the run came forward, for want of another.
        self._late_unlike: str | None = None
        self._first_unlike: str | None = None
        # Until then: how many values that mean nothing differ in a bit.
        self._meaningless = 0
        self._distances: Mapping[tuple[str, str], DataDistance] = {}

    def run(self, files: PartFiles) -> PartResult:
        """Compare, and write every file that was asked for but the advice.

        The last file is that of the advice, if it was asked for: what it says depends on who is at
        fault.
        """
        written = self._write_tables(files)
        advice = None
        if self._options.advise:
            tally = self.tally
            advice = advise(
                tally.first_failure,
                unmatched=self._unmatched_before(),
                is_judged=bool(tally.passed + tally.failed),
                meaningless=tally.meaningless,
            )
            written.append(files.advice())
        matcher = self._matcher
        return PartResult(
            label=self._pair.candidate.label,
            mode=self.mode,
            tally=self.tally,
            reference_only=matcher.reference_only,
            unmatched=tuple(matcher.describe(note) for note in matcher.notes[:_SHOWN_NOTES]),
            unmatched_notes=len(matcher.notes) + matcher.unlisted,
            files=tuple(written),
            gaps=self._gaps(),
            advice=advice,
        )

    def evidence(self) -> PartEvidence:
        """Return what was found out on the way, for who names the operation at fault."""
        first = self._first_unlike or self._late_unlike
        is_located = first is not None
        if first is None and self._matcher.reference_only:
            # The candidate lacks what the reference has, and nobody can say before which call.
            first = next(iter(self._pair.candidate.names), "")
        return PartEvidence(
            *self._pair,
            first_unlike=first,
            distances=self._distances,
            is_located=is_located,
            meaningless=self._meaningless,
        )

    def _gaps(self) -> tuple[Gap, ...]:
        gaps = (*self._pair.candidate.known_gaps, *self._pair.reference.known_gaps)
        if self.mode != "tensor":
            lost = (part for part in self._pair if part.info.task in _WITH_DATA)
            gaps += tuple(Gap(part.path, _LOST_DATA) for part in lost if _lost_data(part))
        return (*gaps, *self._matcher.unmapped)

    def _write_tables(self, files: PartFiles) -> list[Path]:
        written: list[Path] = []
        formats = self._options.formats
        with ExitStack() as stack:
            if self._options.first_difference:
                written.append(files.states())
                self._differences = stack.enter_context(
                    FirstDifference(written[0], self.titles, self._pair.candidate)
                )
            rows = stack.enter_context(closing(self._rows()))
            kept = list(rows) if len(formats) != 1 else None
            for name in formats:
                path = files.path(f".{name}")
                if path in written:
                    path = files.path(".rows.json")
                table = Table("compare_result", self.titles, kept or rows, self._fills)
                if name == "xlsx":
                    write_xlsx(
                        path,
                        (table, unmatched_table(self._matcher), inputs_table(*self._facts())),
                    )
                elif name == "csv":
                    write_csv(path, table)
                else:
                    write_json(path, table)
                written.append(path)
        if {"csv", "json"} & set(formats):
            written.append(files.summary())
            write_summary(written[-1], *self._facts(), self._matcher)
        if self._differences is not None:
            self.node = self._differences.node
        return written

    def _facts(self) -> tuple[PartPair, Options, Mode, Tally]:
        return self._pair, self._options, self.mode, self.tally

    def _rows(self) -> Generator[list[Cell], None, None]:
        """Yield the table's rows, and count, colour and log them on the way."""
        highlighter = Highlighter(self.mode) if self._can_highlight() else None
        tally, log = self.tally, self._options.log
        for call in self._calls():
            if highlighter is not None:
                for number, fill in enumerate(highlighter.mark(call), start=self._row_count):
                    if fill is not None:
                        self._fills[number] = fill
            if self._differences is not None:
                self._differences.add(call)
            self._count(call)
            if log is not None:
                log(_line(call))
            for row in call.rows:
                yield row.cells
        if tally.first_failure is None:
            tally.first_failure = tally.late_failure

    def _unmatched_before(self) -> list[str]:
        """Name the last call before the first failure that only one run has, of each run."""
        failure = self.tally.first_failure
        if failure is None:
            return []
        found = (self._last_unmatched, self._matcher.reference_only_before(failure.call))
        return [name for name in found if name is not None]

    def _count(self, call: CallRows) -> None:
        tally, counts = self.tally, self.tally.counts
        verdicts = [row.verdict for row in call.rows]
        for verdict in verdicts:
            counts[verdict] += 1
        if tally.first_failure is None and "failed" in verdicts:
            self._note_failure(call, verdicts.index("failed"))
        self._row_count += len(verdicts)
        if tally.first_failure is None and "unmatched" in verdicts:
            self._last_unmatched = call.name

    def _note_failure(self, call: CallRows, number: int) -> None:
        if not is_filled_later(call.name):
            self.tally.first_failure = self._failure(call, number)
        elif self.tally.late_failure is None:
            self.tally.late_failure = self._failure(call, number)

    def _failure(self, call: CallRows, number: int) -> Failure:
        row = call.rows[number]
        name = row_name(call.name, row.pair.candidate)
        arguments = tuple(_unequal_arguments(call))
        return Failure(self._row_count + number, name, call.name, row.state, arguments)

    def _can_highlight(self) -> bool:
        """Colours are left out where the table needs more than one sheet."""
        if not self._options.highlight or self.mode == "md5":
            return False
        candidate = self._pair.candidate
        if len(candidate) <= _CALLS_PER_SHEET:
            return True
        if sum(len(call.leaves) for call in candidate.read_leaves()) < ROWS_PER_SHEET:
            return True
        label = clean_text(candidate.label)
        _LOG.warning("%s needs more than one sheet, so its rows get no colours", label)
        return False

    def _calls(self) -> Iterator[CallRows]:
        maker = RowMaker(self.mode, self._stacks, is_fuzzy=self._options.fuzzy)
        is_asked = self._options.find_culprit is not None
        if self.mode == "tensor":
            measure = self._measuring()
            for window in _windows(self._matcher.calls()):
                results = measure(window)
                for call in window:
                    if is_asked and self._first_unlike is None:
                        self._look_for_unlike(call)
                    yield maker.make(call, results)
            return
        # One call after the other: what is made of it dies in the processor's cache.
        progress, total = self._options.progress, len(self._pair.candidate)
        nothing: Iterator[Measured] = iter(())
        for done, call in enumerate(self._matcher.calls()):
            if is_asked and self._first_unlike is None:
                self._look_for_unlike(call)
            if progress is not None and done % _CALLS_PER_TELL == 0:
                progress("calls", done, total)
            yield maker.make(call, nothing)
        if progress is not None:
            progress("calls", total, total)

    def _look_for_unlike(self, call: MatchedCall) -> None:
        is_unlike, meaningless = look_at(call, self._distances)
        self._meaningless += meaningless
        if is_unlike:
            if not is_filled_later(call.name):
                self._first_unlike = call.name
            elif self._late_unlike is None:
                self._late_unlike = call.name

    def _measuring(self) -> _Results:
        progress = self._options.progress
        total = _total_bytes(*self._pair)
        on_bytes = None if progress is None else _adding(progress, total)
        measurer = Measurer(*self._pair, jobs=self._options.jobs, on_bytes=on_bytes)
        self._distances = measurer.distances
        if self._options.find_culprit is not None and total >= _BYTES_TO_PREPARE:
            # The measuring threads need Python rarely.
            start_thread(Thread(target=self._options.find_culprit.prepare))
        return lambda window: iter(
            measurer.measure_all([pair for pair in _pairs_of(window) if wants_data(pair)])
        )


def _unequal_arguments(call: CallRows) -> Iterator[str]:
    """Name the plain arguments, such as an epsilon, that the two runs do not share."""
    for row in call.rows:
        ours, theirs = row.pair.candidate, row.pair.reference
        if theirs is None or not is_plain(ours):
            continue
        mine, other = number_cell(ours.max), number_cell(theirs.max)
        if mine != other:
            yield f"{row_name(call.name, ours)} is {mine} against {other}"


def _pairs_of(window: list[MatchedCall]) -> Iterator[Pair]:
    return (pair for call in window for pair in call.pairs if is_recorded(pair.candidate))


def _windows(calls: Iterator[MatchedCall]) -> Iterator[list[MatchedCall]]:
    """Gather calls until there is enough to keep all cores busy."""
    window: list[MatchedCall] = []
    count = 0
    for call in calls:
        window.append(call)
        count += len(call.pairs)
        if count >= _PAIRS_AT_ONCE:
            yield window
            window, count = [], 0
    if window:
        yield window


def _total_bytes(*parts: RankDump) -> int:
    return sum(
        bytes_of(leaf)
        for part in parts
        for call in part.read_leaves()
        for leaf in call.leaves
        if leaf.data_name is not None
    )


def _adding(tell: Callable[[str, int, int], None], total: int) -> Callable[[int], None]:
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        tell("bytes", done, total)

    return add


def _line(call: CallRows) -> str:
    counts = Counter(row.verdict for row in call.rows)
    return f"{call.name}: {count_words(counts) or 'no values'}"
