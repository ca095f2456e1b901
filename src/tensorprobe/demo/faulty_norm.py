"""Capture two runs of a small model, one with a fault, and find the fault."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tensorprobe.blame.after_compare import Judge
from tensorprobe.blame.command import blame_dumps
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.compare.command import compare_dumps
from tensorprobe.report.lines import print_line
from tensorprobe.show.command import show_dump

__all__ = ["main"]

_CALL = "Functional.layer_norm.0.forward"


class Classifier(nn.Module):
    """Two layers with a normalisation between them.

    Args:
        has_fault: whether the normalisation adds far too large an epsilon, as a port to another
            device may by mistake.
    """

    def __init__(self, *, has_fault: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.activation = nn.GELU()
        self.norm = nn.LayerNorm(32, eps=0.5 if has_fault else 1e-5)
        self.last = nn.Linear(32, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of each class's chance."""
        hidden = self.norm(self.activation(self.first(features)))
        return functional.log_softmax(self.last(hidden), dim=-1)


def main(folder: str) -> int:
    """Capture both runs into a folder, name the culprit, compare them, and look at the call."""
    candidate, reference = Path(folder, "candidate"), Path(folder, "reference")
    for path in (candidate, reference):
        capture_step(path, has_fault=path is candidate)
        _say(f"one training step was captured into {path}")
    _say("", f"$ tensorprobe blame {candidate} {reference}")
    blame_dumps(str(candidate), str(reference), top=3, repro=None, as_json=False)
    _say("", f"$ tensorprobe compare {candidate} {reference} -o {folder}/result --first-diff")
    code = compare_dumps(
        str(candidate),
        str(reference),
        str(Path(folder, "result")),
        fuzzy=False,
        mapping=None,
        highlight=True,
        advise=True,
        first_difference=True,
        stack=None,
        formats=["xlsx", "csv"],
        jobs=0,
        find_culprit=Judge(str(candidate), str(reference)),
    )
    _say("", f"$ tensorprobe show {candidate} {_CALL}")
    return code or show_dump(str(candidate), _CALL)


def capture_step(path: Path, *, has_fault: bool) -> None:
    """Capture one training step of the model; weights and data are the same every time."""
    torch.manual_seed(0)
    model = Classifier(has_fault=has_fault)
    features, targets = torch.randn(8, 16), torch.randint(4, (8,))
    debugger = PrecisionDebugger(task="tensor", dump_path=str(path), level="mix")
    debugger.start(model)
    loss = functional.nll_loss(model(features), targets)
    torch.autograd.backward(loss)
    debugger.stop()
    debugger.step()
    debugger.close()


def _say(*lines: str) -> None:
    for line in lines:
        print_line(line)
    sys.stdout.flush()
