"""Stacks begin with the line of the user."""

from __future__ import annotations

from pathlib import Path

import torch

from tensorprobe import (
    PrecisionDebugger,
    open_dump,
)


def test_stacks_begin_with_the_line_of_the_user(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    with PrecisionDebugger(dump_path=tmp_path, level="mix") as debugger:
        debugger.start(model)
        loss = model(torch.ones(1, 2)).softmax(-1).sum()
        loss.backward()
    part = open_dump(tmp_path).parts[0]
    for name in part.names:
        if ".forward" in name:
            top = part.stack(name)[0]
            assert Path(top.path).name == Path(__file__).name, (name, top)
