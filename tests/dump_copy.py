"""Write an opened dump again with our own writer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tensorprobe.records import TensorValue
from tensorprobe.store import DumpWriter, RankDump


def copy_rank(part: RankDump, folder: Path) -> None:
    """Copy calls, data, stacks and parents of one rank into a folder."""
    info = replace(part.info, torch_version="2.13.0", devices=("cpu",))
    with DumpWriter(folder, info) as writer:
        for call in part.calls():
            for leaf in call.leaves():
                if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None:
                    saved = writer.save_tensor(leaf.name, part.load(leaf.value))
                    assert saved == leaf.value.data_name
            assert writer.write(call, stack=part.stack(call.name), parent=part.parent(call.name))
