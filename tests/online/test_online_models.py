"""Checked online, a run is bit for bit the run that is not, and no sound kernel fails."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch
from torch import nn

from tensorprobe import OnlineCheck
from tensorprobe.online import OnlineReport

# Each model in one precision, and those in which kernels keep their sums in bfloat16 in that.
EVERY = [(name, models.PRECISIONS[row % 3]) for row, name in enumerate(models.CASES)]
EVERY += [(name, "bf16") for name in ("hf bert",) if name in models.CASES]


class Checked(models.Watch):
    """Checks the second of three steps, with the optimizer's."""

    def __init__(self, folder: Path, **options: object) -> None:
        self._folder, self._options = folder, options
        self._step = 0
        self._check: OnlineCheck | None = None
        self.reports: list[OnlineReport] = []

    def start(self, model: nn.Module) -> None:
        if self._step == 1:
            self._check = OnlineCheck(path=self._folder, quiet=True, **self._options)
            self._check.__enter__()

    def step(self) -> None:
        self._step += 1
        if self._check is not None:
            self._check.__exit__(None, None, None)
            self.reports.append(self._check.report)
            self._check = None


@pytest.mark.parametrize(("name", "precision"), dict.fromkeys(EVERY))
def test_a_checked_run_is_the_same_and_nothing_fails(
    tmp_path: Path, name: str, precision: str
) -> None:
    without = models.train(models.CASES[name], precision)
    checked = Checked(tmp_path)
    assert models.train(models.CASES[name], precision, checked) == without
    (report,) = checked.reports
    assert report.failures == ()
    assert report.checked > 100
    assert report.seen == report.checked + sum(report.skipped.values())
    reasons = {reason.partition(" (")[0] for reason in report.skipped}
    assert reasons <= {
        "a matter of memory, not of numbers",
        "returns uninitialised memory",
        "draws random numbers",
    }
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    "options", [{"jobs": 2}, {"precision": "same"}, {"mode": "all"}, {"statistics": True}], ids=str
)
def test_however_it_is_checked(tmp_path: Path, options: dict[str, object]) -> None:
    without = models.train(models.CASES["cnn"], "fp32")
    checked = Checked(tmp_path, **options)
    assert models.train(models.CASES["cnn"], "fp32", checked) == without
    assert checked.reports[0].failures == ()


@pytest.mark.parametrize("name", ["gpt", "cnn"])
def test_without_gradients_and_in_inference_mode(tmp_path: Path, name: str) -> None:
    checked = Checked(tmp_path)
    assert models.predict(models.CASES[name], checked) == models.predict(models.CASES[name])
    assert checked.reports[0].failures == ()
