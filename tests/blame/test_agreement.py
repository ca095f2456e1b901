"""How far two tensors are apart, from data, statistics or checksums."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tensorprobe import DumpWriter, open_dump
from tensorprobe.blame.agreement import Meter, statistics_key
from tensorprobe.blame.recorded_run import RecordedRun
from tensorprobe.pairing.call_pairs import pair_calls
from tensorprobe.records import CallRecord, DumpInfo, TensorValue

PLAIN = TensorValue("torch.float32", (2, 2), 4.0, -2.0, 1.0, 5.0)


def distance(folder: Path, mine: TensorValue, other: TensorValue) -> float:
    sides = []
    for name, value in (("a", mine), ("b", other)):
        with DumpWriter(folder / name, DumpInfo()) as writer:
            writer.write(CallRecord("Torch.exp.0.forward", inputs=(), kwargs={}, outputs=(value,)))
        sides.append(RecordedRun(open_dump(folder / name).parts[0]))
    meter = Meter(*sides)
    (pair,) = pair_calls(*sides)
    (found,) = meter.measure_calls([pair])[pair.name].outputs
    return found.value


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, 0.0),
        ({"max": 4.4}, 0.1),
        ({"min": -2.4}, 0.1),
        ({"mean": 1.4}, 0.1),
        ({"norm": 5.5}, 0.1),
        ({"max": math.inf}, math.inf),
        ({"norm": math.nan}, math.inf),
        ({"shape": (4, 1)}, math.inf),
    ],
)
def test_statistics_are_compared_by_the_size_of_the_tensor(
    change: dict[str, float], wanted: float, tmp_path: Path
) -> None:
    assert distance(tmp_path, replace(PLAIN, **change), PLAIN) == pytest.approx(wanted)  # type: ignore[arg-type]


def test_equal_checksums_are_no_distance_and_others_an_unknown_one(tmp_path: Path) -> None:
    mine = TensorValue("torch.float32", (2,), checksum="00000001")
    assert distance(tmp_path / "x", mine, mine) == 0
    assert math.isnan(distance(tmp_path / "y", mine, replace(mine, checksum="00000002")))


def test_the_key_of_a_view_is_that_of_the_tensor() -> None:
    assert statistics_key(PLAIN) == statistics_key(replace(PLAIN, shape=(4,)))
    assert statistics_key(PLAIN) != statistics_key(replace(PLAIN, norm=5.000001))
    assert statistics_key(replace(PLAIN, mean=None)) is None
