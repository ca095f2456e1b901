"""Task overflow_check: which calls are recorded, with which data, and what it costs the run."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from overflow_runs import LateStatistics, search, try_search
from tensorprobe import Dump, PrecisionDebugger, open_dump
from tensorprobe.records import TensorValue
from tensorprobe.replay.rebuild import load_tensor
from warm_python import run_warm


@pytest.fixture(params=["at once", "late"], autouse=True)
def numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs with numbers that are there at once, and with those of a device."""
    if request.param == "late":
        monkeypatch.setattr("tensorprobe.capture.recorder.StatisticsQueue", LateStatistics)
    kind: str = request.param
    return kind


def names(dump: Dump) -> list[str]:
    return [name for part in dump.parts for name in part.names]


def data_of(dump: Dump, call: str, *, side: str) -> list[torch.Tensor]:
    part = dump.parts[0]
    record = part.call(call)
    values = record.inputs if side == "input" else record.outputs
    return [load_tensor(part, value) for value in values or () if isinstance(value, TensorValue)]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tensorprobe"]


# --- what is an overflow ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_exponential_that_grows_too_large_is_recorded_alone(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    x = torch.tensor([1.0, 2.0, 100.0], dtype=dtype)

    dump = search(tmp_path / "dump", lambda: (x * 2, torch.exp(x), torch.tanh(x)))
    assert names(dump) == ["Torch.exp.0.forward"]
    (given,) = data_of(dump, "Torch.exp.0.forward", side="input")
    (made,) = data_of(dump, "Torch.exp.0.forward", side="output")
    assert given.dtype is dtype
    assert torch.equal(made, torch.exp(given))
    stack = dump.parts[0].stack("Torch.exp.0.forward")
    assert stack[0].path == __file__


def test_division_by_zero_and_the_logarithm_of_zero_are_overflows(tmp_path: Path) -> None:
    x = torch.tensor([0.0, 1.0])
    dump = search(tmp_path / "dump", lambda: (torch.div(x, 0), torch.log(x), torch.sqrt(-x)))
    assert names(dump) == ["Torch.div.0.forward", "Torch.log.0.forward", "Torch.sqrt.0.forward"]


def test_a_mask_of_minus_infinity_is_none(tmp_path: Path) -> None:
    scores = torch.randn(4, 4)
    mask = torch.ones(4, 4).triu(1).bool()

    def run() -> None:
        masked = scores.masked_fill(mask, float("-inf"))
        functional.softmax(masked, -1)
        torch.full((2, 2), float("-inf")).triu(1)
        least = torch.finfo(torch.float16).min
        (scores.half() + torch.full((4, 4), least, dtype=torch.float16)) * 1

    try_search(tmp_path / "dump", run)
    assert not (tmp_path / "dump" / "step0").exists()


def test_memory_as_it_was_found_is_none(tmp_path: Path) -> None:
    def run() -> None:
        garbage = torch.empty(8, dtype=torch.float16)
        garbage.view(torch.int16).fill_(0x7C00)
        for _ in range(20):
            torch.empty(8, dtype=torch.float16)
        garbage.copy_(torch.ones(8))
        garbage.fill_(2.0)

    try_search(tmp_path / "dump", run)
    assert not (tmp_path / "dump" / "step0").exists()


def test_copying_into_memory_that_was_garbage_may_overflow(tmp_path: Path) -> None:
    target = torch.full((2,), float("nan"), dtype=torch.float16)
    dump = search(tmp_path / "dump", lambda: target.copy_(torch.tensor([1.0, 1e6])))
    assert names(dump) == ["Tensor.copy_.0.forward"]


def test_a_result_cut_off_at_the_limit_of_its_dtype_is_an_overflow(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 1000.0])
    limit = 448.0

    def run() -> None:
        x.to(torch.float8_e4m3fn)
        torch.tensor([1.0, limit]).to(torch.float8_e4m3fn)

    dump = search(tmp_path / "dump", run)
    assert names(dump) == ["Tensor.to.0.forward"]


def test_a_call_that_passes_an_infinity_on_is_none(tmp_path: Path) -> None:
    x = torch.tensor([0.0, float("inf")])
    dump = search(tmp_path / "dump", lambda: (x + 1, x * 0, torch.log(torch.zeros(1))))
    assert names(dump) == ["Torch.log.0.forward"]


# --- data ------------------------------------------------------------------------------------


def test_a_call_in_place_is_recorded_with_what_was_there_before(tmp_path: Path) -> None:
    x = torch.tensor([2.0, 60000.0], dtype=torch.float16)
    before = x.clone()
    dump = search(tmp_path / "dump", lambda: x.mul_(2))
    (given,) = data_of(dump, "Tensor.mul_.0.forward", side="input")
    (made,) = data_of(dump, "Tensor.mul_.0.forward", side="output")
    assert torch.equal(given, before)
    assert torch.equal(made, torch.tensor([4.0, float("inf")], dtype=torch.float16))


def test_a_call_that_writes_without_saying_so_is_known_the_second_time(tmp_path: Path) -> None:
    values = [torch.full((100,), 3e38) for _ in range(2)]

    def run() -> None:
        for x in values:
            functional.dropout(x, 0.5, True, True)

    dump = search(tmp_path / "dump", run)
    assert names(dump) == ["Functional.dropout.0.forward", "Functional.dropout.1.forward"]
    assert [gap.problem for gap in dump.gaps] == [
        "the data of Functional.dropout.0.forward.input.0 were overwritten before they were kept"
    ]
    (given,) = data_of(dump, "Functional.dropout.1.forward", side="input")
    assert torch.equal(given, torch.full((100,), 3e38))


def test_a_tensor_that_the_result_goes_to_is_no_input(tmp_path: Path) -> None:
    out = torch.full((2,), float("nan"))
    dump = search(tmp_path / "dump", lambda: torch.log(torch.zeros(2), out=out))
    assert names(dump) == ["Torch.log.0.forward"]
    assert dump.gaps == ()


# --- backward --------------------------------------------------------------------------------


def test_a_backward_that_overflows_comes_with_its_forward(tmp_path: Path) -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    y = torch.tensor([2.0, 3.0], requires_grad=True)
    dump = search(tmp_path / "dump", lambda: (torch.sqrt(x) + torch.exp(y)).sum().backward())
    assert names(dump) == ["Torch.sqrt.0.forward", "Torch.sqrt.0.backward"]
    (forward,) = data_of(dump, "Torch.sqrt.0.forward", side="input")
    (sent,) = data_of(dump, "Torch.sqrt.0.backward", side="input")
    (back,) = data_of(dump, "Torch.sqrt.0.backward", side="output")
    assert torch.equal(forward, x)
    assert torch.equal(sent, torch.ones(2))
    assert back[0] == float("inf")


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


def test_a_module_that_overflows_is_recorded_with_its_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Deep()
    with torch.no_grad():
        model.last.weight.fill_(1e38)
    x = torch.full((2, 3), 1e3)
    with torch.no_grad():
        dump = search(tmp_path / "dump", lambda: model(x), level="L0", model=model)
    assert names(dump) == ["Module.last.Linear.forward.0", "Module.Deep.forward.0"]
    record = dump.parts[0].call("Module.last.Linear.forward.0")
    weight = (record.parameters or {})["weight"]
    assert isinstance(weight, TensorValue)
    assert torch.equal(load_tensor(dump.parts[0], weight), model.last.weight)


def test_gradients_of_parameters_count_where_their_module_made_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Deep()

    def run() -> None:
        x = torch.full((2, 3), 1e38)
        # A finite gradient goes into the first layer; times its input it is none any more.
        model.first(x).mul(1e3 / 1e38).sum().mul(1e38).backward()

    dump = search(tmp_path / "dump", run, level="L0", model=model)
    assert any("first.Linear.parameters_grad" in name for name in names(dump))


def test_gradients_of_parameters_that_were_given_an_infinity_are_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Deep()

    def run() -> None:
        (model(torch.ones(2, 3)).sum() * float("inf")).backward()

    try_search(tmp_path / "dump", run, level="L0", model=model)
    assert not (tmp_path / "dump" / "step0").exists()


# --- how many, and what stays of a run -------------------------------------------------------


def test_the_search_ends_after_overflow_nums_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zeros = torch.zeros(2)
    dump = search(
        tmp_path / "dump",
        lambda: (torch.log(zeros), torch.log(zeros)),
        steps=4,
        overflow_nums=3,
    )
    assert [(part.label, list(part.names)) for part in dump.parts] == [
        ("step0/rank", ["Torch.log.0.forward", "Torch.log.1.forward"]),
        ("step1/rank", ["Torch.log.0.forward"]),
    ]
    assert messages(caplog) == [
        "Torch.log.0.forward is overflow number 3, the last that is recorded (overflow_nums); "
        "the run goes on"
    ]


def test_many_calls_without_an_overflow_leave_a_line_and_no_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(16)

    def run() -> None:
        for _ in range(200):
            torch.tanh(x + 1)

    try_search(tmp_path / "dump", run, steps=2, level="mix")
    assert list((tmp_path / "dump").iterdir()) == []
    assert messages(caplog) == [
        "no call overflowed in 2 steps; overflow_check leaves no dump of them"
    ]


def train(model: Deep, x: torch.Tensor, debugger: PrecisionDebugger | None) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        if debugger is not None:
            debugger.start(model)
        optimizer.zero_grad()
        scaled = model(x) * (10.0 ** (30 * step))
        loss = torch.log(scaled.abs()).sum() + functional.dropout(scaled, 0.5).mean()
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_a_watched_training_is_the_same_bit_for_bit(tmp_path: Path, level: str) -> None:
    results = []
    for is_watched in (False, True):
        torch.manual_seed(1)
        model, x = Deep(), torch.randn(5, 3)
        debugger = None
        if is_watched:
            debugger = PrecisionDebugger(
                dump_path=tmp_path / "dump", task="overflow_check", level=level
            )
        results.append(train(model, x, debugger))
        results[-1].append(torch.rand(3))
    for bare, watched in zip(*results, strict=True):
        assert torch.equal(bare.view(torch.int32), watched.view(torch.int32)), (
            "the bits, so that NaN equals NaN"
        )


class Search(models.Watch):
    """A search around each step."""

    def __init__(self, folder: Path, level: str) -> None:
        self._debugger = PrecisionDebugger(dump_path=folder, task="overflow_check", level=level)

    def start(self, model: nn.Module) -> None:
        self._debugger.start(model)

    def stop(self) -> None:
        self._debugger.stop()

    def step(self) -> None:
        self._debugger.step()


@pytest.mark.parametrize(
    ("name", "precision", "level"),
    [
        ("cnn", "fp32", "mix"),
        ("gpt recomputed reentrantly", "bf16", "L1"),
        ("moe", "autocast", "L1"),
        ("shared memory", "bf16", "mix"),
        ("unet", "fp32", "L0"),
        ("lstm", "autocast", "L2"),
    ],
)
def test_models_of_every_kind_train_as_ever_and_do_not_overflow(
    tmp_path: Path, name: str, precision: str, level: str
) -> None:
    bare = models.train(models.CASES[name], precision)
    watched = models.train(models.CASES[name], precision, Search(tmp_path / "dump", level))
    assert watched == bare
    assert list((tmp_path / "dump").iterdir()) == []


def test_what_waits_for_its_numbers_is_not_lost_to_what_is_written_meanwhile(
    tmp_path: Path,
) -> None:
    zeros = torch.zeros(4)

    def run() -> None:
        x = zeros.clone()
        y = torch.log(x)
        x[:2].add_(5)
        y.fill_(1.0)
        z = torch.log(zeros)
        torch.exp(torch.ones(4), out=z)

    dump = search(tmp_path / "dump", run)
    assert names(dump) == ["Torch.log.0.forward", "Torch.log.1.forward"]
    assert dump.gaps == ()
    for name in names(dump):
        assert torch.equal(data_of(dump, name, side="input")[0], zeros)
        assert torch.equal(data_of(dump, name, side="output")[0], torch.log(zeros))


def test_no_more_is_held_than_the_budget_allows(tmp_path: Path) -> None:
    seen: list[StorageWeakRef] = []

    def run() -> None:
        for _ in range(8):
            x = torch.rand(100_000)
            torch.log(x * 0)
            seen.append(StorageWeakRef(x.untyped_storage()))
        alive = [reference for reference in seen if not reference.expired()]
        # A MiB, and what is made before it is noticed.
        assert len(alive) <= 4

    dump = search(tmp_path / "dump", run, memory_budget=1)
    assert len(names(dump)) == 8


def test_a_run_that_is_killed_soon_after_leaves_its_overflow(tmp_path: Path) -> None:
    program = (
        "import os, signal, time, torch\n"
        "from tensorprobe import PrecisionDebugger\n"
        f"debugger = PrecisionDebugger(dump_path={str(tmp_path)!r}, task='overflow_check')\n"
        "debugger.start()\n"
        "torch.log(torch.zeros(3))\n"
        "for _ in range(20):\n"
        "    time.sleep(0.05)\n"
        "    torch.tanh(torch.ones(3))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run_warm(program)
    dump = open_dump(tmp_path)
    assert names(dump) == ["Torch.log.0.forward"]
    assert torch.equal(data_of(dump, "Torch.log.0.forward", side="input")[0], torch.zeros(3))


def test_nothing_is_held_once_a_call_is_decided(tmp_path: Path, numbers: str) -> None:
    if numbers == "late":
        pytest.skip("the numbers come when all is over")
    seen: list[StorageWeakRef] = []

    def run() -> None:
        for _ in range(5):
            x = torch.randn(1000)
            seen.append(StorageWeakRef(x.untyped_storage()))
            torch.tanh(x)
            assert not seen[-1].expired()
        assert [reference.expired() for reference in seen] == [True] * 4 + [False]

    try_search(tmp_path / "dump", run)


def test_inputs_that_a_backward_may_need_are_let_go_with_it_or_past_the_budget(
    tmp_path: Path, numbers: str
) -> None:
    if numbers == "late":
        pytest.skip("the numbers come when all is over")
    seen: list[StorageWeakRef] = []
    weight = torch.ones(1, requires_grad=True)

    def run() -> None:
        for _ in range(4):
            # Adding keeps nothing of its arguments for the way back.
            x = torch.randn(200_000)
            seen.append(StorageWeakRef(x.untyped_storage()))
            y = weight + x
        del x
        # One MiB is the budget: the first one had to go.
        assert [reference.expired() for reference in seen] == [True, True, True, False]
        y.sum().backward()
        assert seen[-1].expired()

    try_search(tmp_path / "dump", run, memory_budget=1)
