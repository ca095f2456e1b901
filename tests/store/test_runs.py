"""Steps that an earlier run left behind are told of, and never taken away."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tensorprobe import PrecisionDebugger, open_dump
from tensorprobe.compare.run import compare
from tensorprobe.records import DumpInfo
from tensorprobe.show.command import show_dump
from tensorprobe.store.runs import mixed_runs_notice


def capture(folder: Path, steps: Sequence[int]) -> None:
    debugger = PrecisionDebugger(dump_path=folder, level="L1", step=list(steps))
    for _ in range(max(steps) + 1):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()
    debugger.close()


def test_a_shorter_second_run_tells_what_stays_of_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dump"
    with caplog.at_level(logging.WARNING, "tensorprobe"):
        capture(folder, range(3))
        assert caplog.messages == []
        capture(folder, range(1))
        assert len(caplog.messages) == 1
        assert "holds steps 1, 2 of an earlier run" in caplog.messages[0]
        dump = open_dump(folder)
        assert dump.steps == (0, 1, 2)
        assert dump.notice is not None
        assert f"{folder}: steps 1, 2 are left from an earlier run than step 0" in dump.notice
        caplog.clear()
        compare(folder, folder, tmp_path / "out")
        assert caplog.messages == [dump.notice] * 2
    capsys.readouterr()
    assert show_dump(str(folder)) == 0
    assert f"notice: {dump.notice}" in capsys.readouterr().err
    assert show_dump(str(folder), step=0) == 0
    assert capsys.readouterr().err == ""


def test_a_run_that_writes_all_steps_again_is_one_run(tmp_path: Path) -> None:
    capture(tmp_path, range(2))
    capture(tmp_path, range(2))
    assert open_dump(tmp_path).notice is None


def test_ranks_that_begin_at_different_times_are_one_run() -> None:
    infos = [
        DumpInfo(rank=rank, step=step, run=f"2026-01-01T00:00:0{rank}Z")
        for rank in range(2)
        for step in range(2)
    ]
    assert mixed_runs_notice(Path("dump"), infos) is None
    # A dump without a mark is an older tool's, of which nothing is known.
    assert mixed_runs_notice(Path("dump"), [*infos, DumpInfo(rank=0, step=7)]) is None
    late = DumpInfo(rank=1, step=0, run="2026-01-02T00:00:00Z")
    notice = mixed_runs_notice(Path("dump"), [*infos[:2], late, infos[3]])
    assert notice is not None and "step 1 is left" in notice
