"""DDP, FSDP2 and DTensor models on two processes: watched and alone they compute the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from tensorprobe.capture import PrecisionDebugger
from tensorprobe.records import CallRecord, TensorValue
from tensorprobe.store import open_dump

LEVELS = ["L0", "L1", "L2", "mix"]
KINDS = ["ddp", "fsdp2", "tensor_parallel", "compiled_ddp"]
pytestmark = [
    pytest.mark.same_without_c,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
        reason="needs gloo",
    ),
]
pytest.importorskip("torch.distributed.tensor.parallel")
if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
    pytest.skip("this torch has no fully_shard", allow_module_level=True)


def make(kind: str, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    if "ddp" in kind:
        model = nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    if kind == "tensor_parallel":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = parallelize_module(model, mesh, plan)
    if kind == "compiled_ddp":
        model = torch.compile(model, backend="aot_eager")  # type: ignore[assignment]
    return model


def train(kind: str, mesh: Any, rank: int, debugger: PrecisionDebugger | None) -> list[Tensor]:
    model = make(kind, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Ranks that share one model see the same data.
    torch.manual_seed(1 if kind == "tensor_parallel" else rank)
    found: list[Any] = []
    for _ in range(2):
        x = torch.randn(4, 8)
        if debugger is not None:
            debugger.start(model)
        loss = model(x).square().mean()
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    found += [p.detach() for p in model.parameters()]
    return [t.to_local() if hasattr(t, "to_local") else t for t in found]


def left_behind() -> list[int]:
    return [
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_pre_hooks),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
    ]


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    verdicts = {}
    for kind in KINDS:
        alone = train(kind, mesh, rank, None)
        for level in LEVELS:
            where = Path(folder) / kind / level
            debugger = PrecisionDebugger(dump_path=where, level=level, task="tensor")
            watched = train(kind, mesh, rank, debugger)
            debugger.close()
            is_same = all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
            verdicts[f"{kind} {level}"] = [is_same, left_behind()]
    Path(folder, f"verdicts{rank}.json").write_text(json.dumps(verdicts))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run_rank, (str(folder),), nprocs=2)
    return folder


def calls(ranks: Path, kind: str, level: str, rank: int = 0) -> dict[str, CallRecord]:
    part = open_dump(ranks / kind / level).part(step=0, rank=rank)
    return {record.name: record for record in part}


def value(values: Any, key: Any = 0) -> TensorValue:
    found = values[key]
    assert isinstance(found, TensorValue)
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_watched_and_alone_they_compute_the_same_and_nothing_stays(
    ranks: Path, kind: str, level: str
) -> None:
    for rank in range(2):
        verdicts = json.loads((ranks / f"verdicts{rank}.json").read_text())
        assert verdicts[f"{kind} {level}"] == [True, [0, 0, 0, 0]]
    folders = {path.name for path in (ranks / kind / level / "step0").iterdir()}
    assert folders == {"rank0", "rank1"}
    assert not list((ranks / kind / level).rglob("dump_error_info.log"))
    assert calls(ranks, kind, level).keys() == calls(ranks, kind, level, rank=1).keys()


def test_a_data_parallel_model_is_recorded_with_its_inside(ranks: Path) -> None:
    found = calls(ranks, "ddp", "L0")
    assert {
        "Module.DistributedDataParallel.forward.0",
        "Module.module.0.Linear.forward.0",
        "Module.module.2.Linear.backward.0",
        "Module.module.0.Linear.parameters_grad",
    } <= found.keys()


def test_a_sharded_parameter_has_the_numbers_of_this_ranks_part(ranks: Path) -> None:
    found = calls(ranks, "fsdp2", "mix")
    record = found["Module.0.FSDPLinear.forward.0"]
    weight = value(record.parameters, "weight")
    assert weight.shape == (4, 8)
    assert weight.form == "DTensor [8, 8] (Shard(dim=0)) on mesh (dp=2)"
    torch.manual_seed(0)
    whole = nn.Linear(8, 8).weight
    for rank in range(2):
        record = calls(ranks, "fsdp2", "mix", rank)["Module.0.FSDPLinear.forward.0"]
        weight = value(record.parameters, "weight")
        data = open_dump(ranks / "fsdp2" / "mix").part(step=0, rank=rank).load(weight)
        assert data.array.tolist() == whole[4 * rank : 4 * rank + 4].tolist()


def test_a_sharded_model_has_gathered_weights_in_its_calls_and_whole_gradients(
    ranks: Path,
) -> None:
    found = calls(ranks, "fsdp2", "mix")
    assert value(found["Functional.linear.0.forward"].inputs, 1).shape == (8, 8)
    assert any(name.startswith("Distributed.all_gather") for name in found)
    assert any(name.startswith("Distributed.reduce_scatter") for name in found)
    for layer, shape in (("0.FSDPLinear", (8, 8)), ("2.Linear", (4, 8))):
        gradients = found[f"Module.{layer}.parameters_grad"]
        weight = value(gradients.parameters, "weight")
        assert (weight.shape, weight.form) == (shape, None)
        number = 0 if layer.startswith("0") else 1
        of_call = found[f"Functional.linear.{number}.backward"].outputs or ()
        assert weight.norm in [v.norm for v in of_call if isinstance(v, TensorValue)]
    # Buffers that FSDP fills and empties are its own business.
    assert not [name for name in found if "empty" in name or "as_strided" in name]


def test_a_tensor_parallel_call_tells_its_placements(ranks: Path) -> None:
    found = calls(ranks, "tensor_parallel", "L1")
    first, second = (found[f"Functional.linear.{number}.forward"] for number in range(2))
    assert value(first.inputs, 1).form == "DTensor [8, 8] (Shard(dim=0)) on mesh (dp=2)"
    assert value(first.outputs).form == "DTensor [4, 8] (Shard(dim=1)) on mesh (dp=2)"
    assert value(first.outputs).shape == (4, 4)
    assert "Partial" in str(value(second.outputs).form)
    backward = found["Functional.linear.1.backward"]
    assert value(backward.outputs, 1).form == "DTensor [4, 8] (Shard(dim=1)) on mesh (dp=2)"
    # What DTensor computes in Python to distribute a backward pass is no call of the user's.
    assert {name.split(".")[1] for name in found} == {"linear", "relu", "square", "mean"}


def test_an_incomplete_collective_is_described_and_not_waited_for(ranks: Path) -> None:
    found = calls(ranks, "tensor_parallel", "L0")
    output = value(found["Module.Sequential.forward.0"].outputs)
    assert (output.shape, output.max) == ((4, 4), None)
    assert output.form == "AsyncCollectiveTensor, not complete when it was seen"


def test_a_compiled_data_parallel_model_is_recorded(ranks: Path) -> None:
    found = calls(ranks, "compiled_ddp", "mix")
    assert {
        "Module.DistributedDataParallel.forward.0",
        "Module.module.0.Linear.parameters_grad",
    } <= found.keys()
