"""Make pairs of dumps of two ranks for `benchmarks/blame.py`: collectives, and faults around them.

    python benchmarks/rank_pairs.py FOLDER

Each rank holds a part of a layer (tensor parallel) and of the batch (its gradients are summed). The
faults are what a collective gives, and what one rank computes before it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from pair_kernels import Kernels, negated_half, noise, on, one_element, scale, shifted
from torch import nn
from torch.nn import functional

from tensorprobe import PrecisionDebugger

aten, c10d = torch.ops.aten, torch.ops.c10d
dist: Any = torch.distributed
Change = Callable[[torch.Tensor], object]


class Collectives(Kernels):  # type: ignore[no-untyped-call]
    """Runs kernels in another way, and changes what one collective of this rank gives."""

    def __init__(self, kind: str, fault: Any, name: str, number: int, change: Change) -> None:
        super().__init__(kind, fault)
        self._name, self._number, self._change = name, number, change
        self._passed = 0

    def run(self, func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
        """Run a kernel, and change what the chosen collective gives."""
        result = super().run(func, packet, args, kwargs)
        if str(packet) == f"c10d.{self._name}":
            if self._passed == self._number:
                result[1].wait()
                first = args[0][0]
                self._change(first[0] if isinstance(first, list) else first)
            self._passed += 1
        return result


def nothing(tensor: torch.Tensor) -> None:
    """Leave what a collective gives as it is."""


def wrong_element(tensor: torch.Tensor) -> None:
    tensor.view(-1)[9] += 1


def kernels_of(case: str, rank: int) -> Kernels:
    """Return how a rank runs in a case."""
    other = rank == 1
    kind = {"tensor_noise": "splitk", "benign_splitk": "splitk", "benign_f64": "f64"}.get(case, "")
    fault = {
        "before_reduce_scale": (aten.gelu, 0, scale(1.003)),
        "before_gather_element": (aten.native_layer_norm, 0, one_element(lambda x: x * 1.5)),
        "gradient_before_reduce": (aten.gelu_backward, 0, scale(1.02)),
        "tensor_noise": (aten.addmm, 1, noise(1e-3)),
        "rows_moved": (aten.gelu, 1, on(0, shifted)),
        "half_negated": (aten.gelu, 1, on(0, negated_half)),
    }.get(case)
    collective = {
        "reduce_element": ("allreduce_", 0, wrong_element),
        "reduce_scaled": ("allreduce_", 0, lambda tensor: tensor.mul_(1.01)),
        "gather_shifted": ("allgather_", 0, lambda tensor: tensor.copy_(tensor.roll(1, 0))),
    }.get(case, ("", 0, nothing))
    return Collectives(kind, fault if other else None, *(collective if other else ("", 0, nothing)))


EXPECTED = {
    "reduce_element": "Distributed.all_reduce.0.forward",
    "reduce_scaled": "Distributed.all_reduce.0.forward",
    "gather_shifted": "Distributed.all_gather.0.forward",
    "before_reduce_scale": "Functional.gelu.0.forward",
    "before_gather_element": "Functional.layer_norm.0.forward",
    "gradient_before_reduce": "Functional.gelu.1.backward",
    "tensor_noise": "Functional.linear.1.forward",
    "rows_moved": "Functional.gelu.1.forward",
    "half_negated": "Functional.gelu.1.forward",
    "benign_splitk": "",
    "benign_f64": "",
    "benign_twice": "",
}


def step(rank: int) -> None:
    """One step: a layer that both ranks share, a norm, a layer of its own, summed gradients."""
    torch.manual_seed(0)
    shared, norm = nn.Linear(24, 32), nn.LayerNorm(32)
    head, own = nn.Linear(64, 32), nn.Linear(32, 8)
    torch.manual_seed(5 + rank)
    data, target = torch.randn(6, 24), torch.randn(6, 8)
    hidden = functional.gelu(shared(data))
    total = hidden.detach().clone()
    dist.all_reduce(total)
    normed = norm(hidden + total / 2)
    parts = [torch.empty_like(normed) for _ in range(2)]
    dist.all_gather(parts, normed.detach())
    mixed = functional.gelu(head(torch.cat([normed, parts[1 - rank]], -1)))
    functional.mse_loss(own(mixed), target).backward()  # type: ignore[no-untyped-call]
    for layer in (shared, norm, head, own):
        for weight in layer.parameters():
            dist.all_reduce(weight.grad)


def run_rank(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    for case in EXPECTED:
        for side in ("bench", "npu"):
            where = Path(folder, f"ranks_{case}" if "benign" not in case else f"{case}_ranks")
            debugger = PrecisionDebugger(dump_path=str(where / side), task="tensor", level="L1")
            debugger.start()
            with kernels_of(case if side == "npu" else "", rank):
                step(rank)
            debugger.stop()
            debugger.step()
            debugger.close()
            dist.barrier()
        if rank == 0:
            wanted = EXPECTED[case]
            expected = {"kind": "fault" if wanted else "benign", "level": "L1",
                        "culprits": [wanted] if wanted else []}  # fmt: skip
            (where / "expected.json").write_text(json.dumps(expected))
    dist.destroy_process_group()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    spawn(run_rank, (str(folder),), nprocs=2)


if __name__ == "__main__":
    main()
