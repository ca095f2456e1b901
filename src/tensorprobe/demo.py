"""What `make demo` runs: dump one forward pass of a small model, then show the dump.

python -m tensorprobe.demo FOLDER
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import torch

from tensorprobe.dtypes import DTYPES
from tensorprobe.metrics.statistics import measure_array
from tensorprobe.records import CallRecord, DumpInfo, Frame, TensorValue
from tensorprobe.show.command import show_dump
from tensorprobe.store import DumpWriter, TensorData
from tensorprobe.store.writer import rank_folder

__all__ = ["main"]


def main(folder: str) -> int:
    """Write a dump of a two-layer model into a folder and show it."""
    torch.manual_seed(0)
    rank = rank_folder(folder, step=0, rank=None)
    info = DumpInfo(
        step=0,
        task="tensor",
        level="mix",
        torch_version=torch.__version__,
        python_version=sys.version.split()[0],
        devices=("cpu",),
    )
    with DumpWriter(rank, info) as writer:
        _dump_forward_pass(writer)
    _say(f"dump written to {rank}")
    _say(f"\n$ tensorprobe show {folder}")
    show_dump(folder)
    _say(f"\n$ tensorprobe show {folder} Functional.softmax.0.forward")
    return show_dump(folder, "Functional.softmax.0.forward")


def _dump_forward_pass(writer: DumpWriter) -> None:
    features = torch.randn(16, 8)
    weights = [torch.randn(32, 8) / 8**0.5, torch.randn(4, 32) / 32**0.5]
    hidden = torch.nn.functional.linear(features, weights[0])
    active = torch.nn.functional.relu(hidden)
    scores = torch.nn.functional.linear(active, weights[1])
    chances = torch.nn.functional.softmax(scores, dim=-1)
    calls = (
        ("Functional.linear.0", "Module.first.Linear", (features, weights[0]), hidden),
        ("Functional.relu.0", "Module.activation.ReLU", (hidden,), active),
        ("Functional.linear.1", "Module.second.Linear", (active, weights[1]), scores),
        ("Functional.softmax.0", "Module.output.Softmax", (scores,), chances),
    )
    for call, module, inputs, output in calls:
        stack = _stack_here()
        for name, parent in (
            (f"{call}.forward", f"{module}.forward.0"),
            (f"{module}.forward.0", None),
        ):
            record = CallRecord(
                name,
                inputs=tuple(
                    _save(writer, f"{name}.input.{index}", tensor)
                    for index, tensor in enumerate(inputs)
                ),
                kwargs={},
                outputs=(_save(writer, f"{name}.output.0", output),),
            )
            writer.write(record, stack=stack, parent=parent)


def _save(writer: DumpWriter, name: str, tensor: torch.Tensor) -> TensorValue:
    data = TensorData(DTYPES[str(tensor.dtype)], tensor.numpy())
    statistics = measure_array(data.array, data.dtype)
    return TensorValue(
        str(tensor.dtype),
        tuple(tensor.shape),
        statistics.max,
        statistics.min,
        statistics.mean,
        statistics.norm,
        requires_grad=tensor.requires_grad,
        data_name=writer.save_tensor(name, data),
    )


def _stack_here() -> tuple[Frame, ...]:
    frames = traceback.extract_stack()[:-1]
    return tuple(Frame(f.filename, f.lineno or 0, f.name, f.line or "") for f in reversed(frames))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(Path("demo-output"))))
