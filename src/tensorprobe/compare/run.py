"""Compare two dumps: the whole way from paths to files.

    paths or compare.json ─► open both ─► pair ranks ─► PartComparison each ─► ComparisonResult

A rank that is missing, or breaks off, is named in the result and does not stop the others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorprobe.compare.advise import by_the_table, write_advice
from tensorprobe.compare.evidence import Answer, AskWho, PartEvidence
from tensorprobe.compare.first_difference import add_answer, write_differences
from tensorprobe.compare.inputs import (
    Inputs,
    is_compare_json,
    name_inputs,
)
from tensorprobe.compare.options import Options
from tensorprobe.compare.part import PartComparison, PartFiles
from tensorprobe.compare.result import ComparisonResult, PartResult
from tensorprobe.errors import ConfigError, DumpError, ReportError, TensorprobeError
from tensorprobe.pairing.mapping import read_mapping
from tensorprobe.pairing.ranks import PartPair, pair_parts
from tensorprobe.report.result_folder import free_timestamp, make_folder
from tensorprobe.store import Dump, open_dump
from tensorprobe.store.json_text import collector_paused
from tensorprobe.store.locate import place_of
from tensorprobe.system.clean_text import one_line
from tensorprobe.system.text_file import show_path

__all__ = ["compare", "compare_inputs"]

_LOG = logging.getLogger("tensorprobe")
_NAMED = 16


def compare(
    candidate: str | os.PathLike[str] | Mapping[str, Any],
    reference: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] = "./output",
    *,
    fuzzy: bool = False,
    mapping: str | os.PathLike[str] | Mapping[str, str] | None = None,
    highlight: bool = False,
    advise: bool = True,
    first_difference: bool = False,
    stack: bool | None = None,
    formats: Sequence[str] = ("xlsx",),
    jobs: int = 0,
    log: Callable[[str], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    find_culprit: AskWho | None = None,
) -> ComparisonResult:
    """Compare the dump of a run under test with that of a trusted run, and write the tables.

    Args:
        candidate: the run under test: anything that `open_dump` opens; or, without a reference, a
            compare.json that names both, or a dict with its fields.
        reference: the trusted run.
        output: the folder for the results; it is made if need be.
        fuzzy: match calls that differ in their call number alone.
        mapping: a YAML file, or a dict, with names of values and of their partners.
        highlight: mark suspicious rows red and yellow.
        advise: write which value is the first that fails, and the likely cause.
        first_difference: write each call's state, and the first call that differs, as JSON.
        stack: show call stacks; None: if there are any.
        formats: which of xlsx, csv and json to write.
        jobs: how many threads measure; 0: one per core.
        log: is given a line for every call.
        progress: is told a unit (bytes or calls), how many are done, and of how many.
        find_culprit: is asked who is at fault, once all ranks are compared.

    Returns:
        Counts, the first failure and the files, for every rank. That values differ is a result.

    Raises:
        DumpError: a dump cannot be opened, or the two have no rank in common.
        ConfigError: an option, the compare.json or the mapping cannot be used, or a mapping is
            given for more than one rank.
        ReportError: a result cannot be written.
    """
    inputs = name_inputs(candidate, reference)
    if not isinstance(output, str | os.PathLike):
        raise ConfigError(f"the folder of the results is {output!r}; wanted a path")
    if mapping is not None and not isinstance(mapping, Mapping):
        mapping = read_mapping(mapping)
    options = Options(
        fuzzy=fuzzy,
        mapping=mapping or {},
        highlight=highlight,
        advise=advise,
        first_difference=first_difference,
        stack=inputs.shows_stacks(stack),
        formats=tuple(dict.fromkeys(formats)),
        jobs=jobs,
        log=log,
        progress=progress,
        find_culprit=find_culprit,
    )
    return compare_inputs(inputs, Path(output), options)


def compare_inputs(inputs: Inputs, output: Path, options: Options) -> ComparisonResult:
    """Compare what was read from the command line or a compare.json."""
    started = time.process_time()
    candidate, reference = _open(inputs.candidate), _open(inputs.reference)
    for dump in (candidate, reference):
        if dump.notice is not None:
            _LOG.warning("%s", one_line(dump.notice))
    if inputs.stack is not None and len(candidate.parts) == 1:
        candidate.parts[0].read_stacks_from(inputs.stack)
    pairs, problems = pair_parts(candidate, reference)
    if not pairs:
        raise DumpError(
            f"{show_path(inputs.candidate)} and {show_path(inputs.reference)} have no rank and "
            f"step in common: {problems[0]}"
        )
    if options.mapping and len({pair.candidate.label for pair in pairs}) > 1:
        raise ConfigError(
            "a mapping is for one rank at a time, and these are "
            f"{', '.join(pair.candidate.label for pair in pairs[:3])}"
            f"{', …' if len(pairs) > 3 else ''}; give the dump.json, or the folder, of one"
        )
    make_folder(output)
    timestamp = free_timestamp(output)
    results: list[PartResult] = []
    answer: Answer | None = None
    nodes: dict[str, dict[str, Any]] = {}
    compared: list[tuple[str, PartEvidence]] = []
    try:
        with collector_paused():
            for number, pair in enumerate(pairs):
                if options.log is not None and len(pairs) > 1:
                    options.log(f"{pair.candidate.label}:")
                files = _files_of(
                    pair, candidate, output, timestamp, names_rank=inputs.is_compare_json
                )
                try:
                    comparison = PartComparison(pair, _for_one(options, number, len(pairs)))
                    results.append(comparison.run(files))
                except ReportError:
                    raise
                except TensorprobeError as err:
                    if len(pairs) == 1:
                        raise
                    problems.append(f"{pair.candidate.label} was not compared: {err}")
                    continue
                node = _node_of(pair, candidate)
                if comparison.node is not None:
                    nodes[node] = comparison.node
                if options.find_culprit is not None:
                    compared.append((node, comparison.evidence()))
            if options.find_culprit is not None:
                seconds = time.process_time() - started
                answer = options.find_culprit([found for _, found in compared], seconds, problems)
    except KeyboardInterrupt as err:
        raise KeyboardInterrupt(_name_finished(pairs, results)) from err
    finally:
        # Whatever ends the comparison: of the ranks that are compared the files are whole.
        results = [_with_advice(result, answer) for result in results]
    extra = []
    if options.first_difference:
        extra.append(output / f"diff_analyze_{timestamp}.json")
        if answer is not None and (answer.culprit or answer.start) is not None:
            node, evidence = compared[answer.part]
            side = evidence.reference if answer.is_missing else evidence.candidate
            add_answer(nodes, node, side, answer)
        write_differences(extra[0], nodes)
    return ComparisonResult(tuple(results), tuple(problems), tuple(extra), answer)


def _open(path: Path) -> Dump:
    try:
        return open_dump(path)
    except DumpError as err:
        if not is_compare_json(path):
            raise
        raise ConfigError(
            f"{show_path(path)} is a compare.json, which names both runs; give it alone"
        ) from err


def _for_one(options: Options, number: int, count: int) -> Options:
    """Have the progress of one rank told as part of all of them, which are taken to be alike."""
    tell = options.progress
    if tell is None or count == 1:
        return options
    return replace(
        options,
        progress=lambda unit, done, total: tell(unit, number * total + done, count * total),
    )


def _name_finished(pairs: Sequence[PartPair], results: Sequence[PartResult]) -> str:
    """Say which ranks were compared before a user ended it; empty where there is one only."""
    if len(pairs) == 1:
        return ""
    done = dict.fromkeys(result.label for result in results)
    left = [pair.candidate.label for pair in pairs if pair.candidate.label not in done]
    if not left:
        return f"all {len(pairs)} are compared and written; who is at fault is not known"
    finished = f"{_name_some(list(done))}; their files are whole" if done else "none"
    return f"compared: {finished}; not compared: {_name_some(left)}"


def _name_some(labels: Sequence[str]) -> str:
    more = len(labels) - _NAMED
    return ", ".join(labels[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _with_advice(result: PartResult, answer: Answer | None) -> PartResult:
    """Write the advice on a rank, if it was asked for.

    What is known of the fault stands in place of what the rank's first failure looks like.
    """
    advice = result.advice
    if advice is None:
        return result
    if answer is not None and answer.advice:
        is_well = advice.failure is None
        text = f"{advice.text} Yet {answer.advice}" if is_well else answer.advice
        advice = replace(advice, text=text)
    write_advice(result.files[-1], by_the_table(advice, result.tally.late_failure))
    return replace(result, advice=advice)


def _files_of(
    pair: PartPair, candidate: Dump, output: Path, timestamp: str, *, names_rank: bool
) -> PartFiles:
    info = pair.candidate.info
    is_saved = info.level == "debug"
    is_above = candidate.path not in (pair.candidate.path, pair.candidate.path.parent)
    # The users of compare.json know the files of a step folder by `_rank`, also of one process.
    has_rank = info.rank is not None or (names_rank and info.process is None)
    # What could not be opened counts too: it must not change how the others are called.
    is_many = len(candidate.parts) + len(candidate.unopened) > 1 or (has_rank and is_above)
    steps = {*candidate.steps, *(place_of(gap).step for gap in candidate.unopened)} - {None}
    rank = ""
    if is_many:
        rank = f"_rank{'' if info.rank is None else info.rank}"
        if info.rank is None and info.process is not None:
            rank = f"_proc{info.process}"
        if len(steps) > 1:
            rank = f"_step{info.step}{rank}"
    stem = ("debug_" if is_saved else "") + "compare_result" + rank
    return PartFiles(output, stem, timestamp, f"_debug{rank}" if is_saved and rank else rank)


def _node_of(pair: PartPair, candidate: Dump) -> str:
    """Return under which name diff_analyze shows a rank; with several steps each has its own."""
    info = pair.candidate.info
    name = f"rank_{info.rank or 0}"
    if len(candidate.steps) > 1:
        name = f"step_{info.step}_{name}"
    return f"debug_{name}" if info.level == "debug" and len(candidate.parts) > 1 else name
