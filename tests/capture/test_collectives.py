"""Four real ranks over gloo run every scenario once; the tests look at what they left behind."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

# Taken before anything watches, as a training script does.
from torch.distributed import all_reduce as all_reduce_taken_early
from torch.utils.checkpoint import checkpoint

from tensorprobe import open_dump
from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import (
    CallRecord,
    GroupValue,
    ListValue,
    PeerOpValue,
    ReduceOpValue,
    ScalarValue,
    TensorValue,
)
from tensorprobe.store.dump import RankDump

pytestmark = pytest.mark.same_without_c


# Some of what is used here is private or has no types.
dist: Any = torch.distributed
multiprocessing: Any = torch.multiprocessing

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)
if torch.__version__.startswith("2.1."):
    pytest.skip(
        "gloo of torch 2.1 lacks all_gather_into_tensor and others that the ranks call here",
        allow_module_level=True,
    )

WORLD = 4
# Far more than it takes, for a machine that is busy with other things.
LONGEST_RUN = 120
# Late enough that an output which is read too early still holds the input.
LATE = 0.3

WATCHED = (
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "broadcast",
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "all_gather_object",
    "_coalescing_manager",
)


# --- what the ranks do --------------------------------------------------------------------------


def run_rank(rank: int, folder: Path) -> None:
    if sys.platform == "linux":
        # The name of a machine need not lead to an address that it can be reached at.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=LONGEST_RUN / 2),
    )
    facts: dict[str, Any] = {"has_all_to_all": has_all_to_all()}
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    before = read_attributes()
    record(folder / "peer", {"level": "mix"}, lambda: use_as_in_peer_dump(rank, pair, facts))
    record(folder / "sync", {"task": "tensor"}, lambda: use_every_collective(rank, pair, facts))
    record(folder / "async", {"task": "tensor"}, lambda: use_asynchronously(rank, facts))
    record(folder / "anybody", {}, lambda: receive_from_anybody(rank, pair))
    run_unfinished(rank, folder, facts)
    run_failure(rank, folder, facts)
    run_refused(folder)
    facts["changed"] = [name for name, value in read_attributes().items() if before[name] != value]
    facts["training"] = {
        how.__name__: [
            torch.equal(x, y) for x, y in zip(how(rank, None), how(rank, folder), strict=True)
        ]
        for how in (train_by_hand, train_with_hook)
    }
    torch.save(facts, folder / f"facts{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def has_all_to_all() -> bool:
    """Whether gloo knows it; before torch 2.12 or so it does not, and says so before it sends."""
    try:
        dist.all_to_all(empty_parts(), empty_parts())
    except RuntimeError:
        return False
    return True


def read_attributes() -> dict[str, Any]:
    """Everything that a watcher could leave changed."""
    found: dict[str, Any] = {}
    for space in (dist, dist.distributed_c10d):
        for name in WATCHED:
            function = getattr(space, name)
            found[f"{space.__name__}.{name}"] = (
                function,
                function.__code__,
                tuple(function.__dict__),
            )
    for kind in (dist.Work, torch._C.Future):
        found |= {f"{kind.__name__}.{name}": value for name, value in vars(kind).items()}
    return found


def record(folder: Path, settings: dict[str, Any], use: Callable[[], None]) -> None:
    task = settings.get("task", "statistics")
    filters = {"list": ["Distributed"]} if settings.get("level") != "mix" else {}
    fields = {"level": "L1", "dump_path": str(folder), "task": task} | settings | {task: filters}
    file = folder.with_suffix(f".{dist.get_rank()}.json")
    file.write_text(json.dumps(fields))
    debugger = PrecisionDebugger(file)
    debugger.start()
    use()
    debugger.stop()
    debugger.step()


def use_as_in_peer_dump(rank: int, pair: Any, facts: dict[str, Any]) -> None:
    """Make the calls of the script that msprobe's own dump was written with."""
    net = torch.nn.Linear(4, 4)
    y = torch.relu(net(torch.randn(2, 4)))
    t = y.detach().clone()
    dist.all_reduce(t, op=dist.ReduceOp.SUM)
    dist.all_reduce(t, group=pair)
    dist.all_reduce(t, op=dist.ReduceOp.MAX, async_op=True).wait()
    dist.all_gather([torch.zeros(2, 4) for _ in range(WORLD)], y.detach())
    dist.all_gather_into_tensor(torch.zeros(2 * WORLD, 4), y.detach().contiguous())
    dist.reduce_scatter(torch.zeros(2, 4), [y.detach() + i for i in range(WORLD)])
    dist.reduce_scatter_tensor(torch.zeros(2, 4), torch.cat([y.detach()] * WORLD))
    b = y.detach() * (rank + 1)
    dist.broadcast(b, src=0)
    dist.broadcast(b, src=2 * (rank // 2), group=pair)
    dist.reduce(b, dst=0)
    if rank % 2 == 0:
        dist.isend(b, rank + 1).wait()
        dist.send(b * 2, rank + 1)
    else:
        dist.irecv(torch.zeros(2, 4), rank - 1).wait()
        dist.recv(torch.zeros(2, 4), rank - 1)
    numbers = torch.arange(8.0) + 10 * rank
    dist.all_to_all_single(torch.zeros(8), numbers)
    if facts["has_all_to_all"]:
        dist.all_to_all(empty_parts(), list(numbers.chunk(WORLD)))
    ops = [
        dist.P2POp(dist.isend, y.detach(), (rank + 1) % WORLD),
        dist.P2POp(dist.irecv, torch.zeros(2, 4), (rank - 1) % WORLD),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    parts = [y.detach() * i for i in range(WORLD)] if rank == 0 else None
    dist.scatter(torch.zeros(2, 4), parts, src=0)
    gathered = [torch.zeros(2, 4) for _ in range(WORLD)] if rank == 1 else None
    dist.gather(y.detach(), gathered, dst=1)
    torch.autograd.backward(y.sum())
    for parameter in net.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)


def numbered(rank: int, *shape: int) -> torch.Tensor:
    return torch.full(shape, float(rank + 1))


def empty_parts(count: int = WORLD) -> list[torch.Tensor]:
    return [torch.zeros(2) for _ in range(count)]


def use_every_collective(rank: int, pair: Any, facts: dict[str, Any]) -> None:
    mine = numbered(rank, 2)
    all_reduce_taken_early(mine.clone())
    dist.all_reduce(mine.clone(), dist.ReduceOp.MAX, pair)
    dist.broadcast(mine.clone(), 2)
    dist.reduce(mine.clone(), 3, dist.ReduceOp.PRODUCT)
    dist.all_gather(empty_parts(), mine)
    dist.all_gather_into_tensor(torch.zeros(8), mine)
    dist.gather(mine, empty_parts() if rank == 1 else None, dst=1)
    dist.scatter(torch.zeros(2), [mine + i for i in range(WORLD)] if rank == 0 else None, src=0)
    dist.reduce_scatter(torch.zeros(2), [mine + i for i in range(WORLD)])
    dist.reduce_scatter_tensor(torch.zeros(2), torch.cat([mine + i for i in range(WORLD)]))
    if facts["has_all_to_all"]:
        dist.all_to_all(empty_parts(), [mine * 10 + i for i in range(WORLD)])
    dist.all_to_all_single(torch.zeros(WORLD), torch.arange(WORLD) + 10.0 * rank)
    dist.all_reduce_coalesced([mine.clone(), mine + 10])
    dist.all_gather_coalesced([empty_parts(1) for _ in range(WORLD)], [mine])
    if rank % 2 == 0:
        dist.send(mine, rank + 1, tag=7)
    else:
        dist.recv(torch.zeros(2), rank - 1, tag=7)
    # What these send are bytes of pickles.
    objects: list[Any] = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    dist.barrier()
    with dist._coalescing_manager():
        dist.all_reduce(mine)
    facts["objects"] = objects


def receive_from_anybody(rank: int, pair: Any) -> None:
    mine = numbered(rank, 2)
    if rank % 2 == 0:
        for _ in range(2):
            dist.send(mine, rank + 1, pair)
    else:
        dist.recv(mine, group=pair)
        dist.irecv(mine, group=pair).wait()  # type: ignore[union-attr]


def use_asynchronously(rank: int, facts: dict[str, Any]) -> None:
    def start(value: float = 0) -> Any:
        """One rank comes late, so nobody's call is complete when it returns."""
        tensor = numbered(rank, 2) + value
        if rank == 1:
            time.sleep(LATE)
        works.append(dist.all_reduce(tensor, async_op=True))
        facts["kinds"].append(type(works[-1]) is dist.Work)
        return works[-1]

    works: list[Any] = []
    facts["kinds"] = []
    facts["answers"] = answers = [start().wait()]
    work = start(1)
    while not work.is_completed():
        time.sleep(0.01)
    answers.append(start(2).get_future().wait()[0].tolist())
    answers.append(start(3).get_future().then(lambda f: f.value()[0].tolist()).wait())
    future = start(4).get_future()
    while not future.done():
        time.sleep(0.01)
    # Nobody asks for the end of this one.
    start(5)
    coalesced = dist.all_reduce_coalesced([numbered(rank, 2)], async_op=True)
    answers.append(coalesced.wait()[0].tolist())

    mine, ring = numbered(rank, 2), [(rank + 1) % WORLD, (rank - 1) % WORLD]
    if rank == 1:
        time.sleep(LATE)
    for work in (dist.isend(mine, ring[0]), dist.irecv(torch.zeros(2), ring[1])):
        work.wait()
    for work in dist.batch_isend_irecv(batch_made_early(rank, ring)):
        work.wait()
    parts = [mine + i for i in range(WORLD)]
    for work in (
        dist.broadcast(mine.clone(), 2, async_op=True),
        dist.reduce(mine.clone(), 3, async_op=True),
        dist.all_gather(empty_parts(), mine, async_op=True),
        dist.all_gather_into_tensor(torch.zeros(8), mine, async_op=True),
        dist.gather(mine, empty_parts() if rank == 1 else None, 1, async_op=True),
        dist.scatter(torch.zeros(2), parts if rank == 0 else None, 0, async_op=True),
        dist.reduce_scatter(torch.zeros(2), parts, async_op=True),
        dist.reduce_scatter_tensor(torch.zeros(2), torch.cat(parts), async_op=True),
        dist.all_to_all_single(torch.zeros(4), torch.arange(4.0) + 10 * rank, async_op=True),
    ):
        work.wait()
    if facts["has_all_to_all"]:
        dist.all_to_all(empty_parts(), [mine * 10 + i for i in range(WORLD)], async_op=True).wait()
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(mine)
        dist.all_reduce(mine + 1)
    manager.wait()
    dist.barrier()
    # Only now is the one that nobody asked for sure to be complete on every rank.
    time.sleep(LATE)


def batch_made_early(rank: int, ring: list[int]) -> list[Any]:
    return [
        dist.P2POp(dist.isend, numbered(rank, 3), ring[0], tag=3),
        dist.P2POp(dist.irecv, torch.zeros(3), ring[1], tag=3),
    ]


def run_unfinished(rank: int, folder: Path, facts: dict[str, Any]) -> None:
    """A receive that ends only after the session; made from an operation older than it."""
    buffer = torch.zeros(2)
    early = dist.P2POp(dist.irecv, buffer, rank ^ 1)
    works: list[Any] = []
    record(folder / "open", {}, lambda: works.extend(dist.batch_isend_irecv([early])))
    dist.barrier()
    dist.isend(numbered(rank, 2), rank ^ 1).wait()
    works[0].wait()
    facts["received late"] = buffer.tolist()


class RefusesOnce(list[torch.Tensor]):
    """A list that cannot be looked at the first time."""

    looks = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.looks += 1
        if self.looks == 1:
            raise OSError("not now")
        return super().__iter__()


def run_failure(rank: int, folder: Path, facts: dict[str, Any]) -> None:
    parts = RefusesOnce(empty_parts())
    record(folder / "failure", {}, lambda: dist.all_gather(parts, numbered(rank, 2)))
    facts["gathered"] = [part.tolist() for part in parts]


def run_refused(folder: Path) -> None:
    """A gather into too few tensors, which is refused before anything is sent."""

    def use() -> None:
        with pytest.raises((RuntimeError, ValueError)):
            dist.all_gather(empty_parts(WORLD - 1), torch.ones(2))

    record(folder / "refused", {}, use)


class Centred(torch.nn.Module):
    """Subtracts the mean over all ranks, and does so again in the backward pass."""

    def forward(self, x: torch.Tensor) -> Any:
        def centre(x: torch.Tensor) -> torch.Tensor:
            mean = x.detach().mean(0)
            dist.all_reduce(mean)
            return (x - mean / WORLD).sin()

        return checkpoint(centre, x, use_reentrant=False)


def train_by_hand(rank: int, folder: Path | None) -> list[torch.Tensor]:
    """Average gradients with collectives that overlap."""

    def step(net: torch.nn.Module, x: torch.Tensor) -> None:
        torch.autograd.backward(net(x).square().mean())
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        works = [dist.all_reduce(grad, async_op=True) for grad in grads]
        for work in works:
            work.wait()

    return train(rank, folder and folder / "by_hand", lambda net: net, step)


def train_with_hook(rank: int, folder: Path | None) -> list[torch.Tensor]:
    """Average gradients in a communication hook, whose futures only C++ waits for."""

    def average(bucket: Any) -> Any:
        future = dist.all_reduce(bucket.buffer().div_(WORLD), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    def wrap(net: torch.nn.Module) -> Any:
        wrapped: Any = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        # The annotations of a hook would have to be real classes, not texts.
        wrapped.register_comm_hook(None, lambda state, bucket: average(bucket))
        return wrapped

    return train(
        rank,
        folder and folder / "hook",
        wrap,
        lambda net, x: torch.autograd.backward(net(x).square().mean()),
    )


def train(
    rank: int,
    folder: Path | None,
    wrap: Callable[[torch.nn.Module], torch.nn.Module],
    step: Callable[[torch.nn.Module, torch.Tensor], None],
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(6, 8), Centred(), torch.nn.GELU(), torch.nn.Linear(8, 3))
    net = wrap(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(net.parameters())
    torch.manual_seed(rank)
    debugger = None
    if folder is not None:
        debugger = PrecisionDebugger(dump_path=folder, level="mix")
    for _ in range(3):
        if debugger is not None:
            debugger.start(net)
        optimizer.zero_grad()
        step(net, torch.randn(5, 6))
        optimizer.step()
        if debugger is not None:
            debugger.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


# --- what they left behind ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    started = multiprocessing.start_processes(
        run_rank, (folder,), nprocs=WORLD, join=False, start_method="spawn"
    )
    end = time.monotonic() + LONGEST_RUN
    try:
        while not started.join(timeout=1):
            assert time.monotonic() < end, "the ranks hang"
    finally:
        for process in started.processes:
            if process.is_alive():
                process.kill()
    return folder


@pytest.fixture(scope="module")
def facts(ranks: Path) -> list[dict[str, Any]]:
    return [torch.load(ranks / f"facts{rank}.pt", weights_only=True) for rank in range(WORLD)]


def parts_of(folder: Path) -> list[RankDump]:
    dump = open_dump(folder)
    assert dump.ranks == tuple(range(WORLD))
    return [dump.part(rank=rank) for rank in range(WORLD)]


def data_of(dump: RankDump, values: Any) -> Any:
    """The numbers of values, nested as they are; what is no tensor as None."""
    if isinstance(values, ListValue):
        return data_of(dump, values.items)
    if isinstance(values, tuple):
        return [data_of(dump, value) for value in values]
    if isinstance(values, PeerOpValue):
        return data_of(dump, values.tensor)
    return dump.load(values).array.tolist() if isinstance(values, TensorValue) else None


def outputs_of(dump: RankDump, name: str) -> Any:
    return data_of(dump, dump.call(f"Distributed.{name}.forward").outputs)


def inputs_of(dump: RankDump, name: str) -> Any:
    return data_of(dump, dump.call(f"Distributed.{name}.forward").inputs)


def twice(*numbers: float) -> list[list[float]]:
    return [[float(number)] * 2 for number in numbers]


ALL = twice(1, 2, 3, 4)


def results_of(rank: int, facts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What the positional arguments of the common calls hold at the end."""
    mine, following = twice(rank + 1)[0], 10 + WORLD * rank
    parts = [twice(rank + 1 + i)[0] for i in range(WORLD)]
    found: dict[str, list[Any]] = {
        "broadcast.0": [[3.0, 3.0], None],
        "all_gather.0": [ALL, mine],
        "all_gather_into_tensor.0": [[1.0, 1, 2, 2, 3, 3, 4, 4], mine],
        "gather.0": [mine, ALL if rank == 1 else None],
        "scatter.0": [twice(rank + 1)[0], parts if rank == 0 else None],
        "reduce_scatter.0": [twice(following)[0], parts],
        "reduce_scatter_tensor.0": [twice(following)[0], [n for part in parts for n in part]],
        "all_to_all.0": [
            twice(*(10 * (other + 1) + rank for other in range(WORLD))),
            twice(*(10 * (rank + 1) + i for i in range(WORLD))),
        ],
        "all_to_all_single.0": [
            [rank + 10.0 * other for other in range(WORLD)],
            [i + 10.0 * rank for i in range(WORLD)],
        ],
    }
    if not facts[rank]["has_all_to_all"]:
        del found["all_to_all.0"]
    return found


def without_last_nones(values: list[Any]) -> list[Any]:
    """Leave out the ranks, groups and switches at the end."""
    while values and values[-1] is None:
        values = values[:-1]
    return values


@pytest.mark.parametrize("how", ["sync", "async"])
def test_outputs_are_what_the_collective_gave(
    ranks: Path, facts: list[dict[str, Any]], how: str
) -> None:
    for rank, dump in enumerate(parts_of(ranks / how)):
        for name, expected in results_of(rank, facts).items():
            found = outputs_of(dump, name)
            assert without_last_nones(found) == without_last_nones(expected), (rank, name)
        assert not dump.gaps


def test_every_call_is_recorded_once_and_nothing_else(
    ranks: Path, facts: list[dict[str, Any]]
) -> None:
    common = {name.removesuffix(".0") for name in results_of(0, facts)} | {"reduce"}
    for rank, dump in enumerate(parts_of(ranks / "sync")):
        expected = common | {"all_reduce_coalesced", "all_gather_coalesced"}
        expected |= {"recv" if rank % 2 else "send"}
        names = {f"Distributed.{name}.0.forward" for name in expected}
        names |= {f"Distributed.all_reduce.{number}.forward" for number in range(3)}
        assert set(dump.names) == names
    for dump in parts_of(ranks / "async"):
        expected = common | {"isend", "irecv", "batch_isend_irecv", "all_reduce_coalesced"}
        names = {f"Distributed.{name}.0.forward" for name in expected}
        names |= {f"Distributed.all_reduce.{number}.forward" for number in range(8)}
        assert set(dump.names) == names


def test_inputs_are_those_before_the_call(ranks: Path) -> None:
    for rank, dump in enumerate(parts_of(ranks / "sync")):
        mine = twice(rank + 1)[0]
        assert inputs_of(dump, "all_reduce.0") == [mine]
        assert outputs_of(dump, "all_reduce.0") == twice(10)
        assert inputs_of(dump, "all_gather.0") == [twice(0, 0, 0, 0), mine]
        assert inputs_of(dump, "all_reduce_coalesced.0") == [[mine, twice(rank + 11)[0]]]
        assert outputs_of(dump, "all_reduce_coalesced.0") == [twice(10, 50)]
        assert outputs_of(dump, "all_gather_coalesced.0")[0] == [[part] for part in ALL]
        if rank % 2:
            assert inputs_of(dump, "recv.0") == [[0, 0], None]
            assert outputs_of(dump, "recv.0") == [twice(rank)[0], None, None]
        else:
            assert outputs_of(dump, "send.0") == [mine, None, None]
        if rank == 3:
            assert outputs_of(dump, "reduce.0")[0] == twice(24)[0]


def test_group_operation_and_peer_are_in_the_record(ranks: Path) -> None:
    for rank, dump in enumerate(parts_of(ranks / "sync")):
        call = dump.call("Distributed.all_reduce.1.forward")
        members = (0, 1) if rank < 2 else (2, 3)
        group = GroupValue(members, f"{zlib.crc32(str(list(members)).encode()):08x}")
        assert call.inputs is not None and call.outputs is not None
        assert call.inputs[1:] == (ReduceOpValue("RedOpType.MAX"), group)
        assert call.outputs[1:] == call.inputs[1:]
        assert data_of(dump, call.outputs)[0] == twice(2 if rank < 2 else 4)[0]
        point = dump.call(f"Distributed.{'recv' if rank % 2 else 'send'}.0.forward")
        assert point.inputs is not None
        assert point.inputs[1] == ScalarValue("int", rank ^ 1)
        assert point.kwargs == {"tag": ScalarValue("int", 7)}


def test_who_has_sent_is_in_the_record_where_the_caller_named_nobody(ranks: Path) -> None:
    for rank, dump in enumerate(parts_of(ranks / "anybody")):
        for name in ("recv", "irecv") if rank % 2 else ():
            defaults = dump.call(f"Distributed.{name}.0.forward").defaults
            assert defaults == {"src": ScalarValue("int", rank - 1)}


def test_what_the_caller_left_to_torch_is_in_the_record(ranks: Path) -> None:
    everybody = list(range(WORLD))
    world = GroupValue(tuple(everybody), f"{zlib.crc32(str(everybody).encode()):08x}")
    total = ReduceOpValue("RedOpType.SUM")
    for dump in parts_of(ranks / "peer"):
        told = {
            name.removeprefix("Distributed.").removesuffix(".forward"): dump.call(name).defaults
            for name in dump.names
            if name.startswith("Distributed.")
        }
        assert told["all_reduce.0"] == {"group": world}
        assert told["all_reduce.1"] == {"op": total}
        assert told["all_reduce.3"] == {"group": world, "op": total}
        assert told["all_gather.0"] == told["broadcast.0"] == {"group": world}
        # A group of its own is given, and so is the root.
        assert not told["broadcast.1"]
        assert told["reduce_scatter.0"] == told["reduce.0"] == {"group": world, "op": total}


def test_an_operation_of_a_batch_names_its_peer(ranks: Path) -> None:
    world = f"{zlib.crc32(b'[0, 1, 2, 3]'):08x}"
    for rank, dump in enumerate(parts_of(ranks / "async")):
        call = dump.call("Distributed.batch_isend_irecv.0.forward")
        assert call.outputs is not None
        (batch,) = call.outputs
        assert isinstance(batch, ListValue)
        send, receive = batch.items
        assert isinstance(send, PeerOpValue) and isinstance(receive, PeerOpValue)
        before, after = (rank - 1) % WORLD, (rank + 1) % WORLD
        assert (send.op, send.peer, send.tag, send.group_id) == ("isend", after, 3, world)
        assert (receive.op, receive.peer, receive.tag) == ("irecv", before, 3)
        assert inputs_of(dump, "batch_isend_irecv.0") == [[[rank + 1.0] * 3, [0.0] * 3]]
        assert outputs_of(dump, "batch_isend_irecv.0") == [[[rank + 1.0] * 3, [before + 1.0] * 3]]
        assert outputs_of(dump, "irecv.0") == [twice(before + 1)[0], None]
        assert outputs_of(dump, "isend.0") == [twice(rank + 1)[0], None]


def test_an_asynchronous_output_is_read_after_its_end_however_that_is_heard_of(ranks: Path) -> None:
    for rank, dump in enumerate(parts_of(ranks / "async")):
        for number in range(6):
            assert inputs_of(dump, f"all_reduce.{number}") == twice(rank + 1 + number)
            assert outputs_of(dump, f"all_reduce.{number}")[0] == twice(10 + 4 * number)[0]
        assert outputs_of(dump, "all_reduce_coalesced.0")[0] == twice(10)
        # In a block that sends all its calls together.
        assert outputs_of(dump, "all_reduce.6") == twice(10)
        assert outputs_of(dump, "all_reduce.7") == twice(14)


def test_works_and_results_are_the_callers_own(facts: list[dict[str, Any]]) -> None:
    for rank, fact in enumerate(facts):
        assert fact["kinds"] == [True] * 6
        assert fact["answers"] == [True, [18.0, 18.0], [22.0, 22.0], [10.0, 10.0]]
        assert fact["objects"] == [{"rank": other} for other in range(WORLD)]
        assert fact["received late"] == twice((rank ^ 1) + 1)[0]


def test_a_call_that_does_not_end_in_time_has_no_output(ranks: Path) -> None:
    for dump in parts_of(ranks / "open"):
        (call,) = dump.calls()
        assert call.name == "Distributed.batch_isend_irecv.0.forward"
        assert call.inputs is not None and call.outputs is None


def test_a_call_that_raises_has_no_output(ranks: Path) -> None:
    for dump in parts_of(ranks / "refused"):
        (call,) = dump.calls()
        assert call.name == "Distributed.all_gather.0.forward"
        assert call.inputs is not None and call.outputs is None


def test_a_call_that_cannot_be_described_goes_on(ranks: Path, facts: list[dict[str, Any]]) -> None:
    assert all(fact["gathered"] == ALL for fact in facts)
    for dump in parts_of(ranks / "failure"):
        call = dump.call("Distributed.all_gather.0.forward")
        assert call.inputs is None and call.outputs is not None


def test_nothing_stays_changed(facts: list[dict[str, Any]]) -> None:
    assert [fact["changed"] for fact in facts] == [[]] * WORLD


def test_training_is_the_same_to_the_bit(facts: list[dict[str, Any]]) -> None:
    for fact in facts:
        assert fact["training"] == {"train_by_hand": [True] * 4, "train_with_hook": [True] * 4}


def test_a_call_knows_its_module_its_place_and_whether_it_is_recomputed(ranks: Path) -> None:
    dump = open_dump(ranks / "by_hand").part(step=0, rank=0)
    first, again, *gradients = [
        dump.call(name) for name in dump.names if name.startswith("Distributed.all_reduce")
    ]
    assert dump.parent(first.name) == "Module.1.Centred.forward.0"
    assert [call.is_recompute for call in (first, again)] == [False, True]
    assert [call.is_recompute for call in gradients] == [False] * 4
    top = dump.stack(first.name)[0]
    assert (Path(top.path).name, top.function) == (Path(__file__).name, "centre")
    assert top.source == "dist.all_reduce(mean)"
    # A hook of DistributedDataParallel runs inside the backward pass, and is none the less new.
    hooked = open_dump(ranks / "hook").part(step=0, rank=0)
    calls = [
        hooked.call(name) for name in hooked.names if name.startswith("Distributed.all_reduce")
    ]
    assert [call.is_recompute for call in calls] == [False, True, False]
    assert calls[-1].outputs is not None


def layout_of(call: CallRecord) -> list[tuple[str, Any]]:
    """The places of a call's values, with everything but the numbers of tensors."""
    found: list[tuple[str, Any]] = []
    for leaf in call.leaves():
        value: Any = leaf.value
        if isinstance(value, TensorValue):
            value = ("tensor", value.dtype, value.shape, value.requires_grad)
        found.append((leaf.name, value))
    return found


def test_names_and_layout_are_those_of_the_older_tool(
    ranks: Path, facts: list[dict[str, Any]], peer_dumps: Path
) -> None:
    peer = peer_dumps / "msprobe-8.2.1" / "dist" / "mix_statistics" / "npu" / "step0"
    if not peer.is_dir():
        pytest.skip("its dump is not here")
    for ours, theirs in zip(parts_of(ranks / "peer"), open_dump(peer).parts, strict=True):
        names = {name for name in theirs.names if name.startswith("Distributed.")}
        if not facts[0]["has_all_to_all"]:
            names.remove("Distributed.all_to_all.0.forward")
        assert {name for name in ours.names if name.startswith("Distributed.")} == names
        for name in sorted(names):
            mine, other = layout_of(ours.call(name)), layout_of(theirs.call(name))
            if ".isend." in name or ".irecv." in name:
                # Its outputs there are those of another call, made inside batch_isend_irecv.
                mine, other = (
                    [leaf for leaf in leaves if ".output." not in leaf[0]]
                    for leaves in (mine, other)
                )
            assert mine == other
