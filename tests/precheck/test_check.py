"""Calls of every kind are made again and judged: in place, views, autocast, no gradient, L2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from precheck_models import Capture, capture_into, unseen
from torch.nn import functional

from tensorprobe.precheck.checker import Checker
from tensorprobe.precheck.outcome import CallResult
from tensorprobe.precheck.plan import plan_calls
from tensorprobe.replay import functions
from tensorprobe.store import RankDump


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return capture_into(tmp_path)


def x(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    with unseen():
        noise = torch.Generator().manual_seed(5)
        return torch.randn(shape, generator=noise).to(dtype).requires_grad_(grad)


def check(part: RankDump, data: Any = "auto") -> dict[str, CallResult]:
    checker = Checker(part, torch.device("cpu"), data)
    return {call.shown: checker.check(call.name) for call in plan_calls(part)}


def only(results: dict[str, CallResult], name: str) -> CallResult:
    return next(result for shown, result in results.items() if name in shown)


def in_place() -> None:
    given = x(4, 4, grad=True)
    (given * 1).mul_(2).add_(1).sum().backward()


def written_part() -> None:
    given = x(4, 4)
    given[1:, 0] = 3.0


def a_view() -> None:
    x(4, 6, grad=True).transpose(0, 1)[1:3].sum().backward()


def several_outputs() -> None:
    values, _indices = x(5, 7, grad=True).topk(3, dim=1)
    values.sum().backward()


def no_gradient() -> None:
    with torch.no_grad():
        functional.gelu(x(4, 4, grad=True))


def only_one_output_used() -> None:
    first, _second = x(6, 4, grad=True).split(3)
    first.sum().backward()


@pytest.mark.parametrize("data", ["real", "random"])
@pytest.mark.parametrize(
    ("run", "name", "backward"),
    [
        (in_place, "mul_", "pass"),
        (in_place, "add_", "pass"),
        (written_part, "__setitem__", ""),
        (a_view, "transpose", "pass"),
        (a_view, "__getitem__", "pass"),
        (several_outputs, "topk", "pass"),
        (no_gradient, "gelu", ""),
        (only_one_output_used, "split", "pass"),
    ],
)
def test_calls_of_each_kind(
    capture: Capture, run: Callable[[], None], name: str, backward: str, data: str
) -> None:
    result = only(check(capture(run), data), name)
    assert (result.forward, result.backward) == ("pass", backward), result


def test_running_statistics_are_compared_too(capture: Capture) -> None:
    def run() -> None:
        with unseen():
            mean, variance = torch.zeros(4), torch.ones(4)
        result = functional.batch_norm(x(8, 4, 3, grad=True), mean, variance, training=True)
        result.pow(3).sum().backward()

    result = only(check(capture(run)), "batch_norm")
    assert (result.forward, result.backward) == ("pass", "pass"), result
    places = [row.name for row in result.rows]
    assert "Functional.batch_norm.0.forward.input.1" in places
    assert "Functional.batch_norm.0.forward.input.2" in places


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_seen_from_the_result(capture: Capture, dtype: torch.dtype) -> None:
    def run() -> None:
        with torch.autocast("cpu", dtype=dtype):
            result = functional.linear(x(8, 16, grad=True), x(4, 16, grad=True))
        result.float().square().sum().backward()

    result = only(check(capture(run)), "linear")
    assert (result.forward, result.backward) == ("pass", "pass"), result
    assert f"run under autocast to {dtype}" in result.message
    assert result.rows[0].device_dtype == str(dtype)


def test_the_reference_is_one_precision_up(capture: Capture) -> None:
    def run() -> None:
        torch.exp(x(4))
        torch.exp(x(4, dtype=torch.bfloat16))
        functional.softmax(x(4, dtype=torch.float16), dim=0, dtype=torch.float32)
        torch.arange(4) + 1

    rows = {name: result.rows[0] for name, result in check(capture(run)).items()}
    assert rows["Torch.exp.0"].reference_dtype == "torch.float64"
    assert rows["Torch.exp.1"].reference_dtype == "torch.float32"
    assert rows["Functional.softmax.0"].reference_dtype == "torch.float64"
    assert rows["Functional.softmax.0"].device_dtype == "torch.float32"
    assert rows["Torch.arange.0"].reference_dtype == "torch.int64"


def test_casts_are_marked_and_memory_that_nobody_set_is_skipped(capture: Capture) -> None:
    def run() -> None:
        x(4).type_as(x(4, dtype=torch.float16))
        torch.empty(3)
        torch.nextafter(x(4), x(4) + 1)

    results = check(capture(run))
    assert only(results, "type_as").forward == "pass"
    assert "of limited value" in only(results, "type_as").message
    assert only(results, "empty").forward == "SKIP"
    assert "uninitialised" in only(results, "empty").message
    assert only(results, "nextafter").forward == "pass"


def test_random_calls_have_their_own_rule(capture: Capture) -> None:
    def run() -> None:
        functional.dropout(x(500, grad=True), 0.3).sum().backward()
        functional.dropout(x(500), 0.3, training=False)
        torch.bernoulli(x(200).sigmoid())
        torch.rand(100)

    results = check(capture(run))
    assert only(results, "dropout.0").forward == only(results, "dropout.0").backward == "pass"
    assert "share of zeros" in only(results, "dropout.0").rows[0].message
    assert only(results, "dropout.1").rows[0].message == ""
    assert "distribution" in only(results, "bernoulli").rows[0].message
    assert only(results, "rand.0").forward == "pass"


def test_operators_of_both_directions_are_checked_at_l2(capture: Capture) -> None:
    def run() -> None:
        functional.gelu(x(4, 4, grad=True)).sum().backward()

    results = check(capture(run, level="L2"))
    backward = [name for name in results if name.endswith(".backward")]
    assert any("gelu_backward" in name for name in backward)
    assert {result.forward for result in results.values()} <= {"pass", "SKIP"}, results


def test_data_that_is_missing_is_made_up_or_a_reason(capture: Capture, tmp_path: Path) -> None:
    part = capture(lambda: torch.exp(x(4)))
    next(tmp_path.rglob("Torch.exp.0.forward.input.0.pt")).unlink()
    result = only(check(part, "real"), "exp")
    assert result.forward == "SKIP" and "does not exist" in result.message
    assert only(check(part, "random"), "exp").forward == "pass"


def test_what_seems_wrong_in_a_half_is_held_against_float64(capture: Capture) -> None:
    """polygamma is inexact in halves on the CPU, by 2 % there, as float64 shows."""

    def run() -> None:
        with unseen():
            given = torch.tensor(-8.5, dtype=torch.bfloat16, requires_grad=True)
        torch.polygamma(3, given).backward()

    result = only(check(capture(run)), "polygamma")
    rows = {row.name.partition("0.")[2]: row.reference_dtype for row in result.rows}
    assert rows == {"forward.output.0": "torch.float32", "backward.output.0": "torch.float64"}


def test_what_cancels_is_a_warning(capture: Capture) -> None:
    """The running mean is the difference of two numbers, one of them rounded in between."""

    def run() -> None:
        with unseen():
            given = torch.tensor([[-7.9375], [3.609375]], dtype=torch.bfloat16)
            mean = torch.tensor([2.34375], dtype=torch.bfloat16)
            variance = torch.tensor([3.296875], dtype=torch.bfloat16)
        functional.batch_norm(given, mean, variance, training=True, momentum=0.5)

    result = only(check(capture(run)), "batch_norm")
    assert result.forward in ("pass", "warning"), result


def test_sparse_results_are_compared_as_dense_ones(capture: Capture) -> None:
    result = only(check(capture(lambda: x(4, 5).relu().to_sparse())), "to_sparse")
    assert result.forward == "pass", result


def test_a_long_sum_that_cancels_is_no_error(capture: Capture) -> None:
    """The gradient of a bias before a normalisation is 0 but for rounding."""

    def run() -> None:
        with unseen():
            weight, bias = x(16, 3, 3, 3, grad=True), x(16, grad=True)
        features = functional.conv2d(x(4, 3, 24, 24), weight, bias, padding=1)
        normalised = functional.batch_norm(features, None, None, training=True)
        normalised.square().mul(x(4, 16, 24, 24)).mean().backward()

    result = only(check(capture(run)), "conv2d")
    assert result.backward in ("pass", "warning"), result


def test_a_loss_that_the_cpu_adds_up_in_a_half_is_no_error(capture: Capture) -> None:
    def losses() -> None:
        for seed in (3, 5, 18):
            torch.manual_seed(seed)
            given = torch.randn(512, 1000, dtype=torch.bfloat16)
            torch.nn.functional.cross_entropy(given, torch.randint(0, 1000, (512,)))

    results = check(capture(losses, task="tensor"))
    found = [result.forward for shown, result in results.items() if "cross_entropy" in shown]
    assert len(found) == 3
    assert "error" not in found


def test_a_gradient_that_is_nothing_but_rounding_is_no_error(capture: Capture) -> None:
    def attend() -> None:
        for seed in range(12):
            torch.manual_seed(seed)
            q, k, v = (torch.randn(2, 4, size, 16).requires_grad_() for size in (3, 1, 1))
            torch.nn.functional.scaled_dot_product_attention(q, k, v).square().sum().backward()

    results = check(capture(attend, task="tensor"))
    found = [result.backward for shown, result in results.items() if "attention" in shown]
    assert len(found) == 12
    assert "error" not in found


def test_an_index_that_a_rounding_decides_is_a_warning(capture: Capture) -> None:
    """The first of two sums that are equal but for rounding."""

    def run() -> None:
        with unseen():
            rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
            given = rows.to(torch.bfloat16)
        torch.argsort(given @ given.mT, dim=-1)

    result = only(check(capture(run)), "argsort")
    assert result.forward in ("pass", "warning"), result


def sparse_factor() -> None:
    with unseen():
        factor = x(5, 5).relu().to_sparse()
    torch.mv(factor, x(5))


def quantized() -> None:
    with unseen():
        numbers = torch.quantize_per_tensor(x(4), 0.1, 2, torch.qint8)
    torch.relu(numbers)


def beyond_a_view() -> None:
    with unseen():
        part = x(20)[:10]
    torch.as_strided(part, (2, 2), (1, 2), 12)


def an_object() -> None:
    module = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options")
    functional.linear_cross_entropy(
        x(4, 3, grad=True),
        x(5, 3, grad=True),
        torch.arange(4),
        options=module.LinearCrossEntropyOptions(batch_chunk_size=2),
    )


@pytest.mark.parametrize(
    ("run", "name", "reason"),
    [
        (sparse_factor, "mv", "the dump holds only the values of input.0, which was sparse_coo"),
        pytest.param(
            quantized,
            "relu",
            "the dump holds only the values of input.0, which was quantized",
            marks=pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
        ),
        (beyond_a_view, "as_strided", "the dump holds the elements of a view"),
        (an_object, "linear_cross_entropy", "the dump holds input.options as a dict"),
    ],
)
def test_what_the_dump_does_not_hold_is_the_reason_of_a_skip(
    capture: Capture, run: Callable[[], None], name: str, reason: str
) -> None:
    result = only(check(capture(run)), name)
    assert result.forward == "SKIP"
    assert reason in result.message


def test_a_backward_without_gradients_says_so(capture: Capture) -> None:
    def run() -> None:
        torch.norm(x(4, 4, grad=True), p=0).backward()

    result = only(check(capture(run)), "norm")
    assert (result.forward, result.backward) == ("pass", "SKIP")
    assert "backward.output.0: there is none on either side" in result.message


def test_a_gradient_that_is_known_to_be_zero_is_zero(capture: Capture) -> None:
    """Torch gives it no memory, so that whoever looks there reads something else."""

    def run() -> None:
        torch.sgn(x(20, 20, grad=True)).sum().backward()

    result = only(check(capture(run)), "sgn")
    assert (result.forward, result.backward) == ("pass", "pass")


def test_a_random_call_says_why_its_gradients_are_not_judged(capture: Capture) -> None:
    given = x(64, 64, grad=True)
    part = capture(lambda: functional.gumbel_softmax(given).sum().backward())
    result = only(check(part), "gumbel_softmax")
    assert (result.forward, result.backward) == ("pass", "SKIP")
    assert "what it drew" in result.message


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Return what puts another function in the place of `torch.tanh`."""

    def put(function: Any) -> None:
        functions.find_function.cache_clear()
        monkeypatch.setattr(torch, "tanh", function)

    yield put
    functions.find_function.cache_clear()


def test_a_wrong_function_of_one_number_is_no_long_sum(
    capture: Capture, plant: Callable[[Any], None]
) -> None:
    given = x(64, 64, dtype=torch.bfloat16)
    part = capture(lambda: torch.tanh(given))
    assert only(check(part), "tanh").forward == "pass"
    right = torch.tanh

    def wrong(tensor: torch.Tensor) -> torch.Tensor:
        result = right(tensor)
        signs = 1 - 2 * (torch.arange(result.numel()) % 2).reshape(result.shape)
        is_half = result.dtype is torch.bfloat16
        return (result * (1 + 0.01 * signs)).to(result.dtype) if is_half else result

    plant(wrong)
    result = only(check(part), "tanh")
    assert result.forward == "error"
    assert "sums of" not in result.message


def test_a_device_that_fails_where_the_cpu_does_not_is_an_error(
    capture: Capture, plant: Callable[[Any], None]
) -> None:
    given = x(8, 8)
    part = capture(lambda: torch.tanh(given))
    right = torch.tanh

    def failing(reason: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.dtype is torch.float32:
                raise RuntimeError(reason)
            return right(tensor)

        return run

    plant(failing("launch failure"))
    result = only(check(part), "tanh")
    assert result.forward == "error"
    assert "launch failure; the CPU runs it" in result.message
    plant(failing("\"tanh\" not implemented for 'Float'"))
    assert only(check(part), "tanh").forward == "SKIP"


def test_memory_as_it_was_found_is_not_judged_at_l2_either(capture: Capture) -> None:
    part = capture(lambda: torch.empty(4, 4).fill_(1.0), level="L2")
    results = {name: result.forward for name, result in check(part).items() if "empty" in name}
    assert results and set(results.values()) == {"SKIP"}
