"""`enable_dataloader`: a capture that follows the iterations of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tensorprobe import PrecisionDebugger, load_config, open_dump

ORIGINAL = _BaseDataLoaderIter.__next__


@pytest.fixture
def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(12.0).reshape(6, 2)), batch_size=2)


def follow(folder: Path, **fields: Any) -> PrecisionDebugger:
    config = load_config(dump_path=folder, enable_dataloader=True, **fields)
    return PrecisionDebugger.from_config(config)


def steps(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


def test_the_run_ends_after_the_last_wanted_iteration(
    tmp_path: Path, loader: DataLoader[Any]
) -> None:
    follow(tmp_path, step=[0, 1])
    seen = 0
    with pytest.raises(Exception, match=r"^tensorprobe: exit after iteration 1$") as caught:
        for (batch,) in loader:
            torch.relu(batch)
            seen += 1
    assert type(caught.value) is Exception
    assert seen == 2
    assert steps(tmp_path) == ["step0", "step1"]
    assert _BaseDataLoaderIter.__next__ is ORIGINAL
    assert torch._C._len_torch_function_stack() == 0
    assert "Torch.relu.0.forward" in [call.name for call in open_dump(tmp_path / "step1")]


def test_the_loading_itself_is_not_captured(tmp_path: Path, loader: DataLoader[Any]) -> None:
    follow(tmp_path, step=[0])
    with pytest.raises(Exception, match="exit after iteration 0"):
        for (batch,) in loader:
            torch.relu(batch)
    assert [call.name for call in open_dump(tmp_path)] == ["Torch.relu.0.forward"]


def test_only_wanted_iterations_are_captured(tmp_path: Path, loader: DataLoader[Any]) -> None:
    follow(tmp_path, step=[1])
    with pytest.raises(Exception, match="exit after iteration 1"):
        for (batch,) in loader:
            torch.relu(batch)
    assert steps(tmp_path) == ["step1"]


def test_iterations_go_on_counting_in_the_next_epoch(
    tmp_path: Path, loader: DataLoader[Any]
) -> None:
    follow(tmp_path, step=[2, 4])
    with pytest.raises(Exception, match="exit after iteration 4"):
        for _ in range(3):
            for (batch,) in loader:
                torch.relu(batch)
    assert steps(tmp_path) == ["step2", "step4"]


def test_the_last_iteration_of_a_loader_may_be_the_last_wanted(
    tmp_path: Path, loader: DataLoader[Any]
) -> None:
    follow(tmp_path, step=[2])
    with pytest.raises(Exception, match="exit after iteration 2"):
        for (batch,) in loader:
            torch.relu(batch)


def test_without_steps_every_iteration_is_captured_and_the_run_goes_on(
    tmp_path: Path, loader: DataLoader[Any]
) -> None:
    debugger = follow(tmp_path)
    for (batch,) in loader:
        torch.relu(batch)
    assert steps(tmp_path) == ["step0", "step1", "step2"]
    debugger.close()
    assert _BaseDataLoaderIter.__next__ is ORIGINAL


def test_worker_processes_are_followed_too(tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2))
    follow(tmp_path, step=[1])
    with pytest.raises(Exception, match="exit after iteration 1"):
        for (batch,) in DataLoader(data, batch_size=2, num_workers=1):
            torch.relu(batch)
    assert steps(tmp_path) == ["step1"]


class Batched(IterableDataset[Any]):
    """Data whose batches another DataLoader makes, in a worker."""

    def __iter__(self) -> Iterator[Any]:
        yield from list(DataLoader(torch.ones(12, 2), batch_size=2))


def test_a_dataloader_inside_a_worker_counts_no_iterations(tmp_path: Path) -> None:
    follow(tmp_path, step=[1])
    seen = 0
    with pytest.raises(Exception, match=r"^tensorprobe: exit after iteration 1$"):
        for batch in DataLoader(Batched(), batch_size=None, num_workers=1):
            torch.relu(batch)
            seen += 1
    assert seen == 2
    assert [path.parent.name for path in tmp_path.rglob("dump.json")] == ["rank"]


def test_a_batch_that_arrives_from_a_worker_leaves_no_call(tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2))
    loader = DataLoader(data, batch_size=2, num_workers=1)
    with PrecisionDebugger(dump_path=tmp_path) as debugger:
        batches = iter(loader)
        debugger.step()
        for (batch,) in batches:
            torch.relu(batch)
    assert [call.name for call in open_dump(tmp_path / "step1")] == [
        f"Torch.relu.{number}.forward" for number in range(3)
    ]


def test_a_block_that_follows_a_dataloader_holds_its_iterations(
    tmp_path: Path, loader: DataLoader[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with follow(tmp_path):
        for (batch,) in loader:
            torch.relu(batch)
    for number in range(3):
        called = [call.name for call in open_dump(tmp_path / f"step{number}")]
        assert called == ["Torch.relu.0.forward"]
    assert steps(tmp_path) == ["step0", "step1", "step2"]
    assert caplog.messages == []


def test_batches_that_are_fetched_ahead_are_told(
    tmp_path: Path, loader: DataLoader[Any], caplog: pytest.LogCaptureFixture
) -> None:
    follow(tmp_path, step=[0, 2])
    with pytest.raises(Exception, match="exit after iteration 2"):
        for (one,), (other,) in zip(loader, loader, strict=True):
            torch.relu(one + other)
    assert caplog.messages == [
        f"step {step}: no call came between its batch and the request for the next one, as when "
        "batches are fetched ahead by a wrapper, by zip() or in another thread; leave "
        "enable_dataloader out, and call start(), stop() and step() in the loop"
        for step in (0, 2)
    ]


def test_steps_that_a_filter_leaves_empty_are_told_as_such(
    tmp_path: Path, loader: DataLoader[Any], caplog: pytest.LogCaptureFixture
) -> None:
    follow(tmp_path, step=[0], list=["sigmoid"])
    with pytest.raises(Exception, match="exit after iteration 0"):
        for (batch,) in loader:
            torch.relu(batch)
    (told,) = caplog.messages
    assert told.startswith("a step has no call that list names, sigmoid")


def test_calls_by_hand_are_told_and_ignored(
    tmp_path: Path, loader: DataLoader[Any], caplog: pytest.LogCaptureFixture
) -> None:
    debugger = follow(tmp_path, step=[0])
    with pytest.raises(Exception, match="exit after iteration 0"):
        for (batch,) in loader:
            debugger.start()
            torch.relu(batch)
            debugger.stop()
            debugger.step()
    assert steps(tmp_path) == ["step0"]
    assert caplog.messages == [
        f"{name}() is ignored: enable_dataloader starts and stops by itself"
        for name in ("start", "stop", "step")
    ]
