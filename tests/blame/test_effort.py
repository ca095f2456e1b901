"""With little time: who stands out is named at once, and doubts are settled while there is time."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import Exact, aten, capture, scaled

from tensorprobe import open_dump
from tensorprobe.blame.conclusion import Conclusion
from tensorprobe.blame.effort import Effort
from tensorprobe.blame.run import investigate_parts
from tensorprobe.compare.evidence import PartEvidence


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("effort") / "reference")


def conclude(candidate: Path, reference: Path, effort: Effort) -> Conclusion:
    part = PartEvidence(*(open_dump(path).parts[0] for path in (candidate, reference)), None, {})
    return investigate_parts([part], effort=effort).conclusion


def test_who_stands_out_is_named_without_a_replay(reference: Path, tmp_path: Path) -> None:
    fault = capture(tmp_path, Exact(aten.gelu, 0, scaled(1.01)))
    found = conclude(fault, reference, Effort(settles_doubts=True))
    assert (found.culprit, found.replayed) == ("Functional.gelu.0.forward", 0)
    assert found.first is not None
    assert (found.first.basis, found.first.confidence) == ("inputs", "likely")
    assert "tensorprobe blame replays it" in found.first.cause.advice


def test_a_doubt_is_settled_by_a_replay(reference: Path, tmp_path: Path) -> None:
    fault = capture(tmp_path, Exact(aten.gelu, 0, scaled(1.00001)))
    found = conclude(fault, reference, Effort(settles_doubts=True))
    assert found.culprit == "Functional.gelu.0.forward"
    assert found.first is not None and found.first.basis == "replay"


def test_noise_is_proved_while_there_is_time_and_else_not_claimed(
    reference: Path, tmp_path: Path
) -> None:
    noise = capture(tmp_path, Exact())
    found = conclude(noise, reference, Effort(settles_doubts=True))
    assert found.verdict == "noise" and found.replayed and not found.is_cut_short
    assert found.summary.startswith("no operation is at fault")
    found = conclude(noise, reference, Effort(seconds=0.0, settles_doubts=True))
    assert (found.verdict, found.replayed, found.is_cut_short) == ("noise", 0, True)
    assert found.summary.startswith("nobody stands out")
