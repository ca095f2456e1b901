"""A run of a wrapped model pairs with a run of the plain one, in compare and in blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from planted import Kernels
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tensorprobe import PrecisionDebugger, blame, compare
from tensorprobe.pairing.partners import pair_by_name, pair_in_order
from tensorprobe.pairing.wrappers import without_wrappers, wrapped_depth

WRAPPERS = ["DataParallel", "DistributedDataParallel", "CheckpointWrapper"]


class Net(nn.Module):
    """Two linear layers in blocks, so that wrappers may stand around parts."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.head = nn.Linear(16, 4)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.block(given))
        return result


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def capture(folder: Path, wrapper: str, *, is_wrong: bool = False) -> Path:
    torch.manual_seed(0)
    model: nn.Module = Net()
    given = torch.randn(6, 8)
    if wrapper == "DataParallel":
        model = nn.DataParallel(model)
    elif wrapper == "DistributedDataParallel":
        model = nn.parallel.DistributedDataParallel(model)
    elif wrapper:
        model.block = checkpoint_wrapper(model.block)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="L0")
    debugger.start(model)
    with Kernels(torch.ops.aten.addmm, 0, lambda result, _: result * (1.01 if is_wrong else 1)):
        model(given).square().sum().backward()
    debugger.stop()
    debugger.step()
    return folder


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.usefixtures("one_process")
def test_a_wrapped_run_pairs_with_a_plain_one(tmp_path: Path, wrapper: str) -> None:
    plain = capture(tmp_path / "plain", "")
    wrapped = capture(tmp_path / "wrapped", wrapper)
    (result,) = compare(wrapped, plain, tmp_path / "out", formats=("csv",)).parts
    assert result.tally.failed == 0
    assert result.tally.passed > 15
    assert result.reference_only == 0
    for sides in ((wrapped, plain), (plain, wrapped)):
        conclusion = blame(*sides)
        # What checkpointing computes once more has nothing to be compared with.
        wanted = "incomplete" if wrapper == "CheckpointWrapper" else "identical"
        assert (conclusion.verdict, conclusion.differing) == (wanted, 0)
        assert all(
            ".forward.1" in name
            for name in (*conclusion.only_candidate, *conclusion.only_reference)
        )


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.usefixtures("one_process")
def test_a_fault_in_a_wrapped_run_is_found(tmp_path: Path, wrapper: str) -> None:
    plain = capture(tmp_path / "plain", "")
    wrapped = capture(tmp_path / "wrapped", wrapper, is_wrong=True)
    culprit = blame(wrapped, plain).culprit
    assert culprit is not None
    assert without_wrappers(culprit, wrapped_depth([culprit])).startswith("Module.block.")


@pytest.mark.parametrize(
    "wrapped",
    [
        "Module.module.block.0.Linear.forward.0",
        "Module._orig_mod.block.0.Linear.forward.0",
        "Module.module._orig_mod.block.0.Linear.forward.0",
        "Module._fsdp_wrapped_module.block._fsdp_wrapped_module.0.Linear.forward.0",
        "Module.block._checkpoint_wrapped_module.0.Linear.forward.0",
        "Module.block.0.FSDPLinear.forward.0",
    ],
)
def test_names_are_those_of_the_plain_model(wrapped: str) -> None:
    assert without_wrappers(wrapped, wrapped_depth([wrapped])) == "Module.block.0.Linear.forward.0"


def test_a_part_that_is_called_module_further_down_keeps_its_name() -> None:
    name = "Module.block.module.Linear.forward.0"
    assert without_wrappers(name, wrapped_depth([name])) == name


# A model that has a part called `module`, with a head as it has one itself.
OWN = ["Module.module.head.Linear.forward.0", "Module.head.Linear.forward.0"]
WRAPPED = ["Module.module.module.head.Linear.forward.0", "Module.module.head.Linear.forward.0"]


@pytest.mark.parametrize("find", [pair_by_name, pair_in_order])
def test_a_part_of_the_model_that_is_called_module_is_no_wrapper(
    find: Callable[[Sequence[str], Sequence[str]], dict[str, str]],
) -> None:
    assert find(OWN, OWN[1:]) == {OWN[1]: OWN[1]}
    assert all(mine == other for mine, other in find(OWN, OWN[::-1]).items())
    assert find(WRAPPED, OWN) == dict(zip(WRAPPED, OWN, strict=True))
    assert find(OWN, WRAPPED) == dict(zip(OWN, WRAPPED, strict=True))
