"""What else is on: exceptions, threads, a capture, the compiler, another check, other modes."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import models
import pytest
import torch
from faults import WrongKernel
from torch.utils._python_dispatch import _pop_mode
from torch.utils.checkpoint import checkpoint

from tensorprobe import OnlineCheck, PrecisionDebugger, open_dump
from tensorprobe.errors import ConfigError


def rows_of(report: object) -> list[dict[str, str]]:
    with open(report.table, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("jobs", [0, 2])
def test_an_error_of_the_users_own_leaves_complete_results(tmp_path: Path, jobs: int) -> None:
    check = OnlineCheck(path=tmp_path, quiet=True, jobs=jobs)
    with pytest.raises(ZeroDivisionError), WrongKernel("mul", 5), check:
        x = torch.ones(100, 100)
        for _ in range(9):
            x = x * 2
        raise ZeroDivisionError
    assert [failure.name for failure in check.report.failures] == ["mul_5"]
    assert len(rows_of(check.report)) == check.report.checked == 10
    assert torch._C._len_torch_dispatch_stack() == 0


def test_an_operator_that_raises_raises_as_ever(tmp_path: Path) -> None:
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.ones(2, 3) @ torch.ones(2, 3)
        torch.ones(2, 3) @ torch.ones(3, 2)
    assert check.report.failed == 0
    assert "mm_2_output" in {row["NPU Name"] for row in rows_of(check.report)}


def test_a_check_in_a_check_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        with (
            pytest.raises(ConfigError, match="an OnlineCheck is on in this thread already"),
            OnlineCheck(path=tmp_path, quiet=True),
        ):
            raise AssertionError("the block is not entered")
        torch.ones(3) + 1
    assert check.report.checked == 2


def test_a_check_is_used_once_after_the_other(tmp_path: Path) -> None:
    check = OnlineCheck(path=tmp_path, quiet=True)
    with pytest.raises(ConfigError, match="no report before the block"):
        check.report  # noqa: B018 - the question is what is checked
    for _ in range(2):
        with check:
            torch.ones(3) + 1
        assert check.report.checked == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_threads_have_checks_of_their_own(tmp_path: Path) -> None:
    """What another thread does without a check is not seen; with one it is seen by that alone."""
    reports = {}

    def work(name: str, rounds: int) -> None:
        with OnlineCheck(path=tmp_path / name, quiet=True) as check:
            for _ in range(rounds):
                torch.full((50,), 2.0) * 3
        reports[name] = check.report

    def stray() -> None:
        torch.ones(5) * 2

    with OnlineCheck(path=tmp_path / "main", quiet=True) as check:
        threads = [threading.Thread(target=work, args=(f"t{n}", n)) for n in (10, 20, 30)]
        threads.append(threading.Thread(target=stray))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.ones(5) + 1
    assert {name: report.checked for name, report in reports.items()} == {
        "t10": 20,
        "t20": 40,
        "t30": 60,
    }
    assert check.report.checked == 2


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
@pytest.mark.parametrize("is_outside", [True, False], ids=["around", "inside"])
def test_with_a_capture_both_do_their_work(tmp_path: Path, level: str, is_outside: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    batch = torch.randn(3, 4)

    def captured(folder: Path, check: OnlineCheck | None) -> list[str]:
        debugger = PrecisionDebugger(dump_path=folder, level=level, task="tensor")
        if check is not None and is_outside:
            check.__enter__()
        debugger.start(model)
        if check is not None and not is_outside:
            check.__enter__()
        model(batch).sum().backward()
        if check is not None and not is_outside:
            check.__exit__(None, None, None)
        debugger.stop()
        if check is not None and is_outside:
            check.__exit__(None, None, None)
        debugger.step()
        debugger.close()
        model.zero_grad()
        return [call.name for call in open_dump(folder).part()]

    with WrongKernel("addmm", 2):
        alone = captured(tmp_path / "alone", None)
    check = OnlineCheck(path=tmp_path / "results", quiet=True)
    with WrongKernel("addmm", 2):
        assert captured(tmp_path / "both", check) == alone
    assert [failure.name for failure in check.report.failures] == ["addmm_2"]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_what_checkpointing_repeats_is_checked_too(tmp_path: Path) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    x = torch.randn(3, 4, requires_grad=True)
    with WrongKernel("addmm", 3), OnlineCheck(path=tmp_path, quiet=True) as check:
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert [(f.name, f.direction) for f in check.report.failures] == [("addmm_3", "backward")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast(tmp_path: Path, dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        with torch.autocast("cpu", dtype):
            loss = model(torch.randn(32, 64)).float().logsumexp(-1).mean()
        loss.backward()
    assert check.report.failures == ()
    assert str(dtype) in {row["NPU Dtype"] for row in rows_of(check.report)}


def test_second_derivatives_and_transforms(tmp_path: Path) -> None:
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        x = torch.randn(5, requires_grad=True)
        (first,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        first.square().sum().backward()
        mapped = torch.func.vmap(torch.func.grad(lambda v: (v * v).sum()))(torch.ones(3, 4))
    assert torch.equal(mapped, torch.full((3, 4), 2.0))
    assert check.report.failures == ()


def test_what_is_compiled_is_told_as_not_seen(tmp_path: Path) -> None:
    """By a backend that needs no compiler of C."""
    function = torch.compile(lambda x: (x.sin() * 2).sum(), backend="aot_eager")
    x = torch.randn(5)
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        found = function(x)
    assert torch.equal(found, (x.sin() * 2).sum())
    assert any("torch.compile is used" in note for note in check.report.notes)


def test_inputs_that_share_memory_are_made_again_as_they_were(tmp_path: Path) -> None:
    """In place, through views, the same tensor twice, and into a tensor that was given."""
    with OnlineCheck(path=tmp_path, quiet=True) as check:
        x = torch.arange(12.0).reshape(3, 4)
        x[1:] += x[:-1].clone()
        x.t().mul_(x.t())
        torch.add(x, x, out=x)
        x.view(-1)[::2].zero_()
        torch.cat([x[0], x[0]]).copy_(torch.cat([x[2], x[1]]))
    assert check.report.failures == ()
    assert check.report.checked > 10
    with WrongKernel("mul_"), OnlineCheck(path=tmp_path, quiet=True) as check:
        x = torch.arange(12.0)
        x[3:].mul_(2)
    assert [failure.name for failure in check.report.failures] == ["mul__1"]


def test_what_writes_wrongly_into_memory_that_it_shares_is_found(tmp_path: Path) -> None:
    """The schema of this view does not say that it is one."""
    with (
        WrongKernel("_unsafe_view", in_place=True),
        OnlineCheck(path=tmp_path, quiet=True) as check,
    ):
        torch.ops.aten._unsafe_view(torch.randn(6, 4), [24])
    assert [failure.name for failure in check.report.failures] == ["_unsafe_view_1"]


@pytest.mark.parametrize("operator", ["linear", "add_", "relu_", "mul", "clone"])
def test_a_wrong_kernel_is_named_in_inference_mode_too(tmp_path: Path, operator: str) -> None:
    with torch.inference_mode():
        layer = torch.nn.Linear(4, 4)
        x = torch.randn(2, 4)
        with WrongKernel(operator), OnlineCheck(path=tmp_path, quiet=True) as check:
            (layer(x).relu_().add_(1) * 2).clone()
    assert [failure.name for failure in check.report.failures] == [f"{operator}_1"]
    assert check.report.skipped == {}


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_forked_child_is_not_checked_and_ends(tmp_path: Path, jobs: int) -> None:
    """As the workers of a DataLoader; what waits there would wait for ever."""
    check = OnlineCheck(path=tmp_path, quiet=True, jobs=jobs, memory_limit=1000)
    with check:
        x = torch.ones(16, 16)
        x @ x
        child = os.fork()
        if not child:
            for _ in range(20):
                x = x @ x
            with OnlineCheck(path=tmp_path / "child", quiet=True) as own:
                torch.ones(2) * 2
            check.__exit__(None, None, None)
            os._exit(0 if own.report.checked == 2 else 3)
        deadline = time.monotonic() + 60
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.02)
        if not ended[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended == (child, 0)
    assert (check.report.seen, len(rows_of(check.report))) == (2, 2)


def test_a_block_that_ends_in_another_thread_leaves_the_first_one_free(tmp_path: Path) -> None:
    check = OnlineCheck(path=tmp_path, quiet=True)
    check.__enter__()
    thread = threading.Thread(target=lambda: check.__exit__(None, None, None))
    thread.start()
    thread.join()
    torch.ones(2) * 2
    with OnlineCheck(path=tmp_path, quiet=True) as other:
        torch.ones(2) * 2
    assert (check.report.seen, other.report.seen) == (0, 2)
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()


def test_a_block_for_each_step_of_very_many(tmp_path: Path) -> None:
    folders = set()
    for _ in range(40):
        with OnlineCheck(mode="off", path=tmp_path, quiet=True) as check:
            torch.ones(2)
        folders.add(check.report.folder)
        assert check.report.table.name.endswith(f"{check.report.folder.name[8:]}.csv")
    assert len(folders) == 40


def test_an_optimizer_is_checked(tmp_path: Path) -> None:
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        with OnlineCheck(path=tmp_path, quiet=True) as check:
            for _ in range(2):
                model(torch.randn(3, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert check.report.failures == ()


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize("operator", ["_foreach_addcdiv_", "_foreach_lerp_", "_fused_adamw_"])
def test_a_wrong_kernel_of_an_optimizer_is_named(tmp_path: Path, operator: str, jobs: int) -> None:
    model = torch.nn.Linear(4, 4)
    kind = "fused" if "fused" in operator else "foreach"
    optimizer = torch.optim.AdamW(model.parameters(), **{kind: True})
    fault = WrongKernel(operator, 2)
    with fault, OnlineCheck(path=tmp_path, quiet=True, jobs=jobs) as check:
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert fault.was_made
    assert [failure.name for failure in check.report.failures] == [f"{operator}_2"]
    assert check.report.failures[0].numbers.startswith("written.")


def test_nothing_of_it_stays_in_memory(tmp_path: Path) -> None:
    import gc
    import weakref

    with OnlineCheck(path=tmp_path, quiet=True, jobs=2) as check:
        tensor = torch.ones(1000)
        reference = weakref.ref(tensor)
        tensor * 2
        del tensor
    gc.collect()
    assert reference() is None
    assert check.report.checked == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("tensorprobe online")]


def test_a_mode_of_the_users_own_sees_what_it_would_see(tmp_path: Path) -> None:
    seen = []

    class Watch(WrongKernel):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with OnlineCheck(path=tmp_path, quiet=True) as check, Watch("none"):
        torch.ones(3) * 2
    assert seen == ["aten::ones", "aten::mul"]
    assert check.report.checked == 2


@pytest.mark.parametrize("name", ["gpt"])
def test_the_random_state_is_what_it_would_be(tmp_path: Path, name: str) -> None:
    case = models.CASES[name]
    states = []
    for path in (None, tmp_path):
        torch.manual_seed(5)
        model = case.build().train()
        batch = case.batch(torch.Generator().manual_seed(4))
        check = OnlineCheck(path=path, quiet=True) if path else None
        if check is not None:
            check.__enter__()
        case.loss(model, batch).backward()
        if check is not None:
            check.__exit__(None, None, None)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.ones(9).bernoulli_(0.0),
        lambda: torch.bernoulli(torch.ones(9), 0.0),
        lambda: torch.native_dropout(torch.ones(9), 0.0, True),
        lambda: torch.nn.functional.dropout(torch.ones(9), 0.0),
    ],
    ids=["bernoulli_", "bernoulli", "native_dropout", "dropout"],
)
def test_what_draws_at_a_share_of_0_draws_once(
    tmp_path: Path, draw: Callable[[], torch.Tensor], jobs: int
) -> None:
    torch.manual_seed(5)
    draw()
    after = torch.get_rng_state()
    torch.manual_seed(5)
    with OnlineCheck(path=tmp_path, quiet=True, jobs=jobs) as check:
        draw()
    assert torch.equal(torch.get_rng_state(), after)
    assert check.report.failed == 0


@pytest.mark.parametrize("jobs", [0, 1])
def test_an_operator_of_the_users_own_that_writes_where_the_cpu_does_not_fails(
    tmp_path: Path, jobs: int
) -> None:
    library = torch.library.Library("online_writes", "DEF")
    library.define("double(Tensor x) -> Tensor")
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        result = x * 2
        if len(calls) == 1:
            x.mul_(3)
        return result

    library.impl("double", double, "CPU")
    with OnlineCheck(path=tmp_path, quiet=True, jobs=jobs) as check:
        torch.ops.online_writes.double(torch.ones(4))
    (failure,) = check.report.failures
    assert failure.name == "online_writes.double_1"
    assert "written.0" in failure.numbers
    assert "the device wrote into it, the reference does not" in failure.numbers
    library._destroy()
