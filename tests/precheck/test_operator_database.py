"""A sample of PyTorch's own operator database: everything is judged, nothing right is an error.

benchmarks/precheck.py does the same with all of it.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import REPOSITORY
from tensorprobe import open_dump
from tensorprobe.precheck.checker import Checker
from tensorprobe.precheck.plan import plan_calls

EVERY = 16


@pytest.fixture(scope="module")
def database() -> Any:
    path = REPOSITORY / "benchmarks" / "operator_database.py"
    spec = importlib.util.spec_from_file_location("operator_database", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("data", ["real", "random"])
def test_a_sample_of_operators(database: Any, tmp_path: Path, data: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = database.capture_database(tmp_path, samples=1, every=EVERY)
    assert captured.operators >= 35
    part = open_dump(tmp_path).part()
    checker = Checker(part, torch.device("cpu"), data)
    results = [checker.check(call.name) for call in plan_calls(part)]
    skipped = [result for result in results if result.forward == "SKIP"]
    uninitialised = [result for result in skipped if "uninitialised" in result.message]
    lost = [result for result in skipped if result not in uninitialised]
    limit = 0.03 if data == "real" else 0.1
    assert len(lost) <= limit * len(results), [(r.name, r.message) for r in lost]
    if data == "real":
        wrong = [r for r in results if "error" in (r.forward, r.backward)]
        assert [r for r in wrong if "matrix_exp" not in r.name] == []
