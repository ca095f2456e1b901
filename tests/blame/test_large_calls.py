"""Large calls are replayed by some of their rows, large dumps by their most suspicious calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planted import Exact, Kernels, aten, capture, scaled, with_element
from torch.nn import functional

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.blame import blame, select
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.blame.rows import KEPT_ROWS, rows_of
from tensorprobe.blame.split import split_call
from tensorprobe.pairing.call_pairs import CallPair, pair_calls


def record(folder: Path, kernels: Kernels) -> RecordedRun:
    torch.manual_seed(0)
    given, weight = torch.randn(40, 50, 64), torch.randn(64, 64)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L1")
    debugger.start()
    with kernels, torch.no_grad():
        result = functional.linear(given, weight)
        result = functional.softmax(result, dim=-1)
        functional.softmax(result, dim=0)
    debugger.stop()
    debugger.step()
    debugger.close()
    return RecordedRun(open_dump(folder).parts[0])


def pairs_of(ours: RecordedRun, theirs: RecordedRun) -> dict[str, CallPair]:
    return {pair.name: pair for pair in pair_calls(ours, theirs)}


def test_a_wrong_element_is_found_among_the_rows_that_are_kept(tmp_path: Path) -> None:
    kernels = Kernels(aten.mm, 0, with_element(lambda x: x * 1.01))
    ours, theirs = record(tmp_path / "a", kernels), record(tmp_path / "b", Kernels())
    pair = pairs_of(ours, theirs)["Functional.linear.0.forward"]
    assert rows_of(pair) == 2000
    (output,) = split_call(pair, ours, theirs).outputs
    assert output.count <= KEPT_ROWS * 64
    assert output.candidate.peaks[0] > 100
    assert output.candidate.spikes == 1
    assert output.reference.peaks[0] < 5


def test_only_calls_that_go_row_by_row_are_cut(tmp_path: Path) -> None:
    run = record(tmp_path, Kernels())
    pairs = pairs_of(run, run)
    assert rows_of(pairs["Functional.softmax.0.forward"]) == 2000
    assert rows_of(pairs["Functional.softmax.1.forward"]) == 0


@pytest.mark.parametrize("budget", [0.0, 1e5])
def test_a_dump_that_is_too_large_to_replay_still_has_an_answer(
    budget: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = capture(tmp_path / "reference")
    fault = capture(tmp_path / "fault", Exact(aten.gelu, 0, scaled(1.001)))
    noise = capture(tmp_path / "noise", Exact())
    monkeypatch.setattr(select, "_BUDGET", budget)
    answer = blame(fault, reference)
    assert answer.culprit == "Functional.gelu.0.forward"
    assert answer.replayed <= budget / 1e4
    assert answer.first is not None
    assert answer.first.basis == ("replay" if budget else "inputs")
    assert blame(noise, reference).culprit is None
