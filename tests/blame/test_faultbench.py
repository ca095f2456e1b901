"""A few pairs of the fault benchmark, of msprobe's dumps: faults are named, noise is not blamed.

All of it is scored by benchmarks/blame.py; here are small ones of each sort.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from conftest import DATA, SHARED
from tensorprobe.blame import blame

CASES = (
    "benign_cnn_bf16_f64",
    "benign_gnn_scatter_order",
    "gnn_linear_noise_1e-3",
    "gpt_bf16_layernorm_scale_1e-2",
    "gru_mix_bwd_scale_1e-2",
)


def archive_of(case: str) -> Path:
    here = DATA / "faultbench" / f"{case}.tar.xz"
    return here if here.exists() else SHARED / "faultbench" / "cases" / f"{case}.tar.xz"


@pytest.mark.parametrize("case", CASES)
def test_the_first_answer_is_right(case: str, tmp_path: Path) -> None:
    archive = archive_of(case)
    if not archive.exists():
        pytest.skip("the fault benchmark is not here")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / case / "expected.json").read_text())
    answer = blame(tmp_path / case / "npu", tmp_path / case / "bench")
    if expected["kind"] == "benign":
        assert answer.culprit is None
    else:
        assert answer.culprit in expected["culprits"]
