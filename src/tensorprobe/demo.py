"""What `make demo` runs: capture one training step of a small model, then look into the dump.

python -m tensorprobe.demo FOLDER
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.show.command import show_dump

__all__ = ["main"]

_CALL = "Functional.softmax.0.forward"


class Classifier(nn.Module):
    """Two layers and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.activation = nn.GELU()
        self.second = nn.Linear(32, 4)
        self.output = nn.Softmax(dim=-1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the chance of each class."""
        chances: torch.Tensor = self.output(self.second(self.activation(self.first(features))))
        return chances


def main(folder: str) -> int:
    """Capture a step of the model into a folder and show it."""
    torch.manual_seed(0)
    model = Classifier()
    features = torch.randn(16, 8)
    debugger = PrecisionDebugger(task="tensor", dump_path=folder, level="mix")
    debugger.start(model)
    model(features).log().mean().neg().backward()
    debugger.stop()
    debugger.step()
    debugger.close()
    _say(f"one training step was captured into {folder}")
    _say(f"\n$ tensorprobe show {folder}")
    show_dump(folder)
    _say(f"\n$ tensorprobe show {folder} {_CALL}")
    return show_dump(folder, _CALL)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "demo-output"))
