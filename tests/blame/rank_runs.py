"""Runs of several ranks over gloo, captured for real, with a fault planted on one rank only.

python tests/blame/rank_runs.py FOLDER WORLD      captures all of them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from planted import Kernels, aten, scaled
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tensorprobe import PrecisionDebugger

dist: Any = torch.distributed
multiprocessing: Any = torch.multiprocessing
LONGEST_RUN = 240


class WrongResult(AbstractContextManager[None]):
    """Lets one method of the process group, such as `allreduce`, hand out a wrong result."""

    def __init__(self, method: str, change: Callable[[torch.Tensor], object]) -> None:
        self.method, self.change = method, change
        # As it stands in the class: read through it, it would be bound no more when it is back.
        self.kept: Any = vars(dist.ProcessGroup)[method]

    def __enter__(self) -> None:
        right = getattr(dist.ProcessGroup, self.method)

        def wrong(group: Any, *args: Any) -> Any:
            work = right(group, *args)
            work.wait()
            first = args[0][0]
            with torch._C.DisableTorchFunction():
                self.change(first[0] if isinstance(first, list) else first)
            return work

        setattr(dist.ProcessGroup, self.method, wrong)

    def __exit__(self, *error: Any) -> None:
        setattr(dist.ProcessGroup, self.method, self.kept)


def wrong_on_last(rank: int, world: int) -> AbstractContextManager[Any]:
    return Kernels(aten.gelu, 0, scaled(1.01)) if rank == world - 1 else Kernels()


def wrong_sender(rank: int, world: int) -> AbstractContextManager[Any]:
    return Kernels(aten.silu, 0, scaled(1.01)) if rank == 0 else Kernels()


def wrong_gradient(rank: int, world: int) -> AbstractContextManager[Any]:
    return Kernels(aten.tanh_backward, 0, scaled(1.05)) if rank == world - 1 else Kernels()


def wrong_reduction(rank: int, world: int) -> AbstractContextManager[Any]:
    if rank != world - 1:
        return nullcontext()
    return WrongResult("allreduce", lambda tensor: tensor.mul_(1.01))


def wrong_gathering(rank: int, world: int) -> AbstractContextManager[Any]:
    if rank != 0:
        return nullcontext()
    return WrongResult("allgather", lambda tensor: tensor[0].neg_())


FAULTS: dict[str, Callable[[int, int], AbstractContextManager[Any]]] = {
    "reference": lambda rank, world: Kernels(),
    "before_reduction": wrong_on_last,
    "before_sending": wrong_sender,
    "gradient": wrong_gradient,
    "reduction": wrong_reduction,
    "gathering": wrong_gathering,
}


def use_collectives(rank: int, world: int) -> None:
    """Reduce, gather, broadcast, and hand on from rank to rank."""
    torch.manual_seed(10 + rank)
    x, weight = torch.randn(6, 16), torch.randn(16, 16)
    hidden = functional.gelu(functional.linear(x, weight))
    dist.all_reduce(hidden)
    hidden = torch.tanh(hidden / world)
    parts = [torch.empty_like(hidden) for _ in range(world)]
    dist.all_gather(parts, hidden * (rank + 1))
    mixed = functional.layer_norm(torch.cat(parts), [16])
    dist.broadcast(mixed, src=world - 1)
    handed = functional.silu(mixed + rank)
    if rank:
        received = torch.zeros_like(handed)
        dist.recv(received, src=rank - 1)
        handed = handed + received
    if rank < world - 1:
        dist.send(handed, dst=rank + 1)
    functional.softmax(handed, dim=-1)


def train(model: nn.Module, rank: int) -> None:
    torch.manual_seed(20 + rank)
    output = model(torch.randn(6, 16))
    torch.autograd.backward(functional.mse_loss(output, torch.ones_like(output)))


def run_rank(rank: int, folder: str, world: int, tasks: tuple[str, ...]) -> None:
    if sys.platform == "linux":
        # The name of a machine need not lead to an address that it can be reached at.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=LONGEST_RUN / 2),
    )
    for task in tasks:
        for name, plant in FAULTS.items():
            torch.manual_seed(1)
            net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
            model = DistributedDataParallel(net)
            where = Path(folder, task, name)
            debugger = PrecisionDebugger(dump_path=str(where), task=task, level="mix")
            debugger.start(model)
            with plant(rank, world):
                use_collectives(rank, world)
                train(model, rank)
            debugger.stop()
            debugger.step()
            debugger.close()
            dist.barrier()
    dist.destroy_process_group()


def capture_ranks(folder: Path, world: int, tasks: tuple[str, ...]) -> Path:
    """Capture a sound run and one with each fault, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    multiprocessing.spawn(run_rank, (str(folder), world, tasks), nprocs=world)
    return folder


if __name__ == "__main__":
    capture_ranks(Path(sys.argv[1]), int(sys.argv[2]), ("tensor", "statistics"))
