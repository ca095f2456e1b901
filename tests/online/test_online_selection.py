"""Which operators are checked, which are not and why, and which a user leaves out."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from faults import WrongKernel

from tensorprobe import OnlineCheck
from tensorprobe.errors import ConfigError
from tensorprobe.online import OnlineReport


def checked(folder: Path, run: Callable[[], object], **options: object) -> OnlineReport:
    with OnlineCheck(path=folder, quiet=True, **options) as check:
        run()
    return check.report


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda: torch.rand(3), "draws random numbers (rand)"),
        (lambda: torch.dropout(torch.ones(9), 0.5, True), "draws random numbers (bernoulli_)"),
        (lambda: torch.empty(3), "returns uninitialised memory (empty)"),
        (lambda: torch.ones(3).new_empty(2), "returns uninitialised memory (new_empty)"),
        (lambda: torch.ones(1).item(), "a matter of memory, not of numbers (_local_scalar_dense)"),
        (
            lambda: torch.eye(3).to_sparse() * 2,
            "a torch.sparse_coo tensor among its arguments (mul)",
        ),
        (
            lambda: torch.ones(3, device="meta") * 2,
            "a meta tensor, which holds no numbers, among its arguments (mul)",
        ),
        (
            lambda: torch.arange(9.0)[3:].as_strided((2,), (1,), 0),
            "looks at memory beyond its tensor's elements (as_strided)",
        ),
    ],
)
def test_what_cannot_be_compared_is_listed_with_its_reason(
    tmp_path: Path, run: Callable[[], object], reason: str
) -> None:
    report = checked(tmp_path, run)
    assert reason in report.skipped
    assert report.seen == report.checked + sum(report.skipped.values())
    assert report.failed == 0


def test_a_dropout_that_drops_nothing_is_checked(tmp_path: Path) -> None:
    report = checked(tmp_path, lambda: torch.native_dropout(torch.ones(9), 0.0, True))
    assert (report.checked, report.skipped) == (2, {})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_subclass_is_skipped_and_its_own_operators_are_not(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    report = checked(tmp_path, lambda: (nested * 2, torch.ones(2) * 2))
    assert any("nested tensor" in reason for reason in report.skipped)
    assert report.checked == 2


@pytest.fixture
def library() -> object:
    made = torch.library.Library("online_test", "DEF")
    made.define("thirds(Tensor x) -> Tensor")
    made.define("add_into(Tensor(a!) x, Tensor y) -> ()")
    yield made
    made._destroy()


def test_an_operator_of_the_users_own_is_checked_by_its_cpu_kernel(
    tmp_path: Path, library: torch.library.Library
) -> None:
    def add_into(x: torch.Tensor, y: torch.Tensor) -> None:
        x += y

    library.impl("thirds", lambda x: x / 3, "CPU")
    library.impl("add_into", add_into, "CPU")

    def run() -> None:
        x = torch.randn(5)
        torch.ops.online_test.thirds(x)
        torch.ops.online_test.add_into(x, torch.ones(5))

    report = checked(tmp_path, run, include=["online_test"])
    assert (report.checked, report.failed, report.skipped) == (2, 0, {})
    with WrongKernel("thirds"):
        report = checked(tmp_path, run)
    assert [failure.name for failure in report.failures] == ["online_test.thirds_1"]


def test_an_operator_without_a_cpu_kernel_is_skipped(
    tmp_path: Path, library: torch.library.Library
) -> None:
    """Here it has one for meta tensors alone, which are not looked at."""
    library.impl("thirds", lambda x: x / 3, "Meta")
    with (
        pytest.raises(NotImplementedError, match="thirds"),
        OnlineCheck(path=tmp_path, quiet=True) as check,
    ):
        torch.ops.online_test.thirds(torch.ones(3))
    assert check.report.failed == 0


@pytest.mark.parametrize("jobs", [0, 1])
def test_what_an_operator_of_the_users_own_draws_is_drawn_once(
    tmp_path: Path, library: torch.library.Library, jobs: int
) -> None:
    """Its numbers, and those that the run draws while it is checked."""

    def thirds(x: torch.Tensor) -> torch.Tensor:
        before = torch.rand(3)
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.3)
        return x / 3 + before.sum() * 0

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        torch.ops.online_test.thirds(torch.ones(3))
        time.sleep(0.1)
        first = torch.rand(3)
        time.sleep(0.4)
        return [first, torch.rand(3)]

    library.impl("thirds", thirds, "CPU")
    wanted, found = run(), []
    report = checked(tmp_path, lambda: found.extend(run()), jobs=jobs)
    assert all(map(torch.equal, found, wanted))
    assert report.failed == 0


def test_reasons_that_differ_each_time_do_not_fill_the_screen(
    tmp_path: Path, library: torch.library.Library
) -> None:
    calls_of_the_run: list[int] = []

    def thirds(x: torch.Tensor) -> torch.Tensor:
        if not calls_of_the_run:
            raise RuntimeError(f"not for {next(numbers)} times")
        calls_of_the_run.pop()
        return x / 3

    numbers = itertools.count()
    library.impl("thirds", thirds, "CPU")

    def run() -> None:
        for number in range(50):
            calls_of_the_run.append(number)
            torch.ops.online_test.thirds(torch.ones(3))

    report = checked(tmp_path, run)
    assert sum(report.skipped.values()) == 50
    assert len(report.skipped) <= 21
    assert any(
        reason.startswith("for other reasons (online_test.thirds") for reason in report.skipped
    )


def test_what_the_user_leaves_out_is_counted(tmp_path: Path) -> None:
    def run() -> None:
        x = torch.ones(4, 4)
        for _ in range(4):
            (x @ x).relu() + 1

    report = checked(tmp_path, run, include=["mm", "re*u"])
    assert (report.checked, report.left_out) == (8, report.seen - 8)
    report = checked(tmp_path, run, exclude=["mm"])
    assert (report.checked, report.left_out) == (9, 4)
    report = checked(tmp_path, run, every=2)
    assert report.checked == 7
    report = checked(tmp_path, run, max_bytes=63)
    assert report.checked == 1


def test_a_name_that_nothing_has_is_told(tmp_path: Path) -> None:
    report = checked(tmp_path, lambda: torch.ones(2) * 2, include=["mul", "nosuch"])
    assert report.notes == ("no operator that ran has the name nosuch",)
    report = checked(tmp_path, lambda: torch.ones(2) * 2, mode="list", ops=["mm.out", "aten::mul"])
    assert report.notes == ("no operator that ran has the name mm",)
    assert {path.name.split("_")[0] for path in report.folder.rglob("*.npy")} == {"mul"}


def test_an_operator_of_the_users_own_that_draws_is_skipped(
    tmp_path: Path, library: torch.library.Library
) -> None:
    library.impl("thirds", lambda x: x + torch.rand(3), "CPU")
    report = checked(tmp_path, lambda: torch.ops.online_test.thirds(torch.ones(3)))
    assert report.skipped == {"draws random numbers (online_test.thirds)": 1}


def test_what_only_its_own_kernel_can_read_is_skipped(tmp_path: Path) -> None:
    """The backward of oneDNN's LSTM is given memory in a form of the dtype that it was made for."""
    for dtype in (torch.float32, torch.bfloat16):
        layer = torch.nn.LSTM(8, 16, 2, batch_first=True).to(dtype)
        x = torch.randn(3, 7, 8, dtype=dtype, requires_grad=True)
        report = checked(tmp_path, lambda: layer(x)[0].float().sum().backward())  # noqa: B023
        assert report.failed == 0
        assert report.checked > 10


def test_only_the_wanted_steps_are_checked(tmp_path: Path) -> None:
    with OnlineCheck(path=tmp_path, quiet=True, steps=[1]) as check:
        for factor in range(3):
            torch.ones(2) * factor
            check.step()
    report = check.report
    assert (report.checked, report.left_out) == (2, 4)


def test_a_failure_tells_the_step_and_the_line(tmp_path: Path) -> None:
    with WrongKernel("mul", 2), OnlineCheck(path=tmp_path, quiet=True) as check:
        torch.ones(2) * 3
        check.step()
        torch.ones(2) * 3
    (failure,) = check.report.failures
    assert (failure.step, failure.call, failure.direction) == (1, 2, "forward")
    assert "test_online_selection.py:" in failure.place
    assert failure.place.endswith("in test_a_failure_tells_the_step_and_the_line")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tag": "t" * 151}, "wanted up to 150 letters"),
        ({"mode": "some"}, "mode is 'some', wanted one of all, list, auto, off"),
        ({"mode": "list"}, "mode is list and ops is not given"),
        ({"mode": "list", "ops": ["matmull"]}, "no such operator; did you mean matmul?"),
        ({"ops": ["mm"]}, "ops goes with mode='list'"),
        ({"every": 0}, "every is 0, wanted a whole number, 1 or more"),
        ({"jobs": -1}, "jobs is -1, wanted a whole number, 0 or more"),
        ({"steps": ["a"]}, "steps is 'a', wanted a whole number"),
        ({"tag": "../up"}, "tag is '../up', wanted up to 150 letters, digits"),
        ({"max_bytes": 0}, "max_bytes is 0, wanted a whole number, 1 or more"),
        ({"precision": "double"}, "precision is 'double', wanted one of higher, same"),
        ({"include": [3]}, "include holds 3, wanted names or patterns"),
        ({"steps": 1.5}, "steps is 1.5, wanted numbers of steps"),
        ({"include": 5}, "include is 5, wanted a list of names"),
        ({"mode": "list", "ops": 5}, "ops is 5, wanted a list of names"),
        ({"mode": "list", "ops": []}, "mode is list and ops is not given"),
        ({"path": None}, "path is None, wanted the name of a folder"),
    ],
)
def test_what_cannot_be_used_is_told(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as err:
        OnlineCheck(**{"path": tmp_path, **options})
    assert message in str(err.value)
    assert list(tmp_path.iterdir()) == []


def test_what_a_users_operator_draws_from_numpy_and_python_is_put_back(
    tmp_path: Path, library: torch.library.Library
) -> None:
    library.impl("thirds", lambda x: x * (np.random.rand() + random.random()), "CPU")
    found = []
    for check in (nullcontext(), OnlineCheck(path=tmp_path, quiet=True)):
        np.random.seed(3)
        random.seed(3)
        with check:
            found.append([torch.ops.online_test.thirds(torch.ones(2)) for _ in range(3)])
    assert all(map(torch.equal, *found))
    assert isinstance(check, OnlineCheck)
    assert check.report.skipped == {"draws random numbers (online_test.thirds)": 3}


def test_a_users_operator_that_gives_something_else_each_time_is_skipped(
    tmp_path: Path, library: torch.library.Library
) -> None:
    count = itertools.count(1)
    library.impl("thirds", lambda x: x * next(count), "CPU")
    report = checked(tmp_path, lambda: torch.ops.online_test.thirds(torch.ones(2)))
    assert "gives something else each time (online_test.thirds)" in report.skipped


@pytest.mark.filterwarnings("ignore:.*linalg.eig")
@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.linalg.eig(x),
        lambda x: torch.linalg.eigvals(x),
        lambda x: torch.linalg.det(x[:, :6][:6]),
        lambda x: torch.linalg.slogdet(x[:, :6][:6]),
        lambda x: torch.linalg.solve(x[:, :6][:6], x[:6, 0]),
        lambda x: torch.linalg.lstsq(1 / (x.abs() + 1).cumsum(0), x[:, :1]),
    ],
)
def test_one_of_many_right_results_is_no_failure(
    tmp_path: Path, run: Callable[[torch.Tensor], object]
) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        assert checked(tmp_path, lambda: run(torch.randn(12, 12))).failures == ()


def test_the_gradient_that_torch_computes_otherwise_is_told(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    report = checked(tmp_path, lambda: x.prod().backward())
    assert any("prod: torch computes its gradient by another formula" in n for n in report.notes)
    assert checked(tmp_path, lambda: x.detach().prod()).notes == ()


def test_gradients_that_are_nothing_but_rounding_do_not_fail(tmp_path: Path) -> None:
    for seed in range(30):
        torch.manual_seed(seed)
        q, k, v = (torch.randn(2, 4, size, 16).requires_grad_() for size in (3, 1, 1))
        attend = torch.nn.functional.scaled_dot_product_attention
        report = checked(tmp_path, lambda: attend(q, k, v).square().sum().backward())  # noqa: B023
        assert report.failures == ()


def test_a_loss_that_the_cpu_adds_up_in_a_half_does_not_fail(tmp_path: Path) -> None:
    for seed in range(12, 24):
        torch.manual_seed(seed)
        x = torch.randn(512, 1000, dtype=torch.bfloat16).requires_grad_()
        wanted = torch.randint(0, 1000, (512,))
        run = partial(torch.nn.functional.cross_entropy, x, wanted)
        assert checked(tmp_path, lambda: run().backward()).failures == ()  # noqa: B023
