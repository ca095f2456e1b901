"""Without a replay: what distances of statistics and checksums can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from tensorprobe import DumpWriter
from tensorprobe.blame import blame
from tensorprobe.records import CallRecord, DumpInfo, TensorValue
from tensorprobe.rounding.distance import CallAgreement, Distance
from tensorprobe.rounding.explain import Background, explain_call

Call = tuple[str, TensorValue, TensorValue]


def write(folder: Path, calls: list[Call]) -> Path:
    with DumpWriter(folder, DumpInfo(level="L1")) as writer:
        for name, given, result in calls:
            writer.write(CallRecord(name, inputs=(given,), kwargs={}, outputs=(result,)))
    return folder


def summed(text: str) -> TensorValue:
    return TensorValue("torch.float32", (4, 4), checksum=text.rjust(8, "0"))


def sized(size: float, dtype: str = "torch.float32") -> TensorValue:
    return TensorValue(dtype, (4, 4), size, -size, 0.1 * size, 2 * size, requires_grad=False)


def test_checksums_name_the_first_difference_and_are_not_sure_of_it(tmp_path: Path) -> None:
    reference = write(
        tmp_path / "reference",
        [
            ("Functional.gelu.0.forward", summed("1"), summed("2")),
            ("Functional.silu.0.forward", summed("2"), summed("3")),
        ],
    )
    candidate = write(
        tmp_path / "candidate",
        [
            ("Functional.gelu.0.forward", summed("1"), summed("a")),
            ("Functional.silu.0.forward", summed("a"), summed("b")),
        ],
    )
    answer = blame(candidate, reference)
    assert answer.culprit == "Functional.gelu.0.forward"
    assert answer.basis == "checksums"
    assert answer.first is not None
    assert answer.first.confidence == "possible"
    assert blame(reference, reference).verdict == "identical"


def test_a_copy_with_another_checksum_is_likelier(tmp_path: Path) -> None:
    calls = [("Tensor.transpose.0.forward", summed("1"), summed("2"))]
    reference = write(tmp_path / "reference", calls)
    calls = [("Tensor.transpose.0.forward", summed("1"), summed("3"))]
    first = blame(write(tmp_path / "candidate", calls), reference).first
    assert first is not None
    assert (first.cause.kind, first.confidence) == ("indices", "likely")


def test_a_victim_is_not_blamed_for_what_it_was_given(tmp_path: Path) -> None:
    reference = write(
        tmp_path / "reference",
        [
            ("Functional.gelu.0.forward", sized(1.0), sized(2.0)),
            ("Functional.silu.0.forward", sized(2.0), sized(3.0)),
        ],
    )
    candidate = write(
        tmp_path / "candidate",
        [
            ("Functional.gelu.0.forward", sized(1.0), sized(2.02)),
            ("Functional.silu.0.forward", sized(2.02), sized(3.05)),
        ],
    )
    answer = blame(candidate, reference)
    assert [accused.call for accused in answer.accused] == ["Functional.gelu.0.forward"]
    assert answer.accused[0].victims == 1


def test_behind_the_culprit_statistics_accuse_nobody(tmp_path: Path) -> None:
    """They may be the same and hide what differs; then what follows seems to be at fault."""
    calls = [
        ("Functional.gelu.0.forward", sized(1.0), sized(2.0)),
        ("Functional.silu.0.forward", sized(2.0), sized(3.0)),
    ]
    reference = write(tmp_path / "reference", calls)
    calls = [
        ("Functional.gelu.0.forward", sized(1.0), sized(2.0002)),
        ("Functional.silu.0.forward", sized(2.0002), sized(3.9)),
    ]
    answer = blame(write(tmp_path / "candidate", calls), reference)
    assert [accused.call for accused in answer.accused] == ["Functional.gelu.0.forward"]


def test_a_rounding_of_bfloat16_is_noise_there_and_a_fault_in_float32(tmp_path: Path) -> None:
    for dtype, culprit in (
        ("torch.bfloat16", None),
        ("torch.float32", "Functional.gelu.0.forward"),
    ):
        calls = [("Functional.gelu.0.forward", sized(1.0, dtype), sized(2.0, dtype))]
        reference = write(tmp_path / f"{dtype}-reference", calls)
        calls = [("Functional.gelu.0.forward", sized(1.0, dtype), sized(2.008, dtype))]
        assert blame(write(tmp_path / f"{dtype}-candidate", calls), reference).culprit == culprit


def test_noise_of_float32_is_noise_in_the_parts_of_complex_numbers(tmp_path: Path) -> None:
    for dtype in ("torch.float32", "torch.complex64"):
        calls = [("Functional.gelu.0.forward", sized(1.0, dtype), sized(2.0, dtype))]
        reference = write(tmp_path / f"{dtype}-reference", calls)
        calls = [("Functional.gelu.0.forward", sized(1.0, dtype), sized(2.0 + 8e-7, dtype))]
        answer = blame(write(tmp_path / f"{dtype}-candidate", calls), reference)
        assert answer.culprit is None, dtype


def test_a_rounding_of_one_eight_bit_float_is_a_fault_in_another(tmp_path: Path) -> None:
    """Between 2 and 2.5, neighbours in float8_e5m2, float8_e4m3 has another number."""
    found = {}
    for dtype in ("torch.float8_e4m3fn", "torch.float8_e5m2"):
        calls = [("Functional.relu.0.forward", sized(1.0, dtype), sized(2.0, dtype))]
        reference = write(tmp_path / f"{dtype}-reference", calls)
        calls = [("Functional.relu.0.forward", sized(1.0, dtype), sized(2.5, dtype))]
        answer = blame(write(tmp_path / f"{dtype}-candidate", calls), reference)
        found[dtype] = answer.culprit
    culprit = "Functional.relu.0.forward"
    assert found == {"torch.float8_e4m3fn": culprit, "torch.float8_e5m2": None}


def test_the_size_of_a_complex_number_is_rounded_and_that_of_a_real_one_is_not(
    tmp_path: Path,
) -> None:
    """One last bit of torch.abs of complex numbers was held for a fault of an exact operation."""
    found = {}
    for dtype in ("torch.complex64", "torch.float32"):
        given = replace(sized(1.0, dtype), checksum="00000001")
        mine = replace(sized(2.0 + 2.0**-22), checksum="0000000a")
        other = replace(sized(2.0), checksum="0000000b")
        reference = write(tmp_path / f"{dtype}-reference", [("Torch.abs.0.forward", given, other)])
        candidate = write(tmp_path / f"{dtype}-candidate", [("Torch.abs.0.forward", given, mine)])
        found[dtype] = blame(candidate, reference).culprit
    assert found == {"torch.complex64": None, "torch.float32": "Torch.abs.0.forward"}


def test_a_limit_says_why_it_is_so_large() -> None:
    given = Distance("input.0", 1e-3, "statistics", sized(1.0), sized(1.001))
    output = Distance("output.0", 0.5, "statistics", sized(3.0), sized(2.0))
    agreement = CallAgreement((given,), (output,))
    call = SimpleNamespace(name="Functional.gelu.0.forward", phase="forward", is_exact=False)
    found = explain_call(call, agreement, None, Background(value=1e-2), 0.0)
    assert found is not None
    assert found.limit.main_term.reason == "what went in differs, or the run before it"
    assert found.limit.main_term.total == 5 * 1e-2
    assert found.times == 0.5 / found.limit.total
    assert "results are rounded" in found.limit.explain()


def test_statistics_that_became_nan_are_told(tmp_path: Path) -> None:
    calls = [("Functional.gelu.0.forward", sized(1.0), sized(2.0))]
    reference = write(tmp_path / "reference", calls)
    lost = replace(sized(2.0), max=float("nan"), min=float("nan"), norm=float("nan"))
    calls = [("Functional.gelu.0.forward", sized(1.0), lost)]
    answer = blame(write(tmp_path / "candidate", calls), reference)
    assert answer.first is not None
    assert answer.first.cause.kind == "non-finite"


def averaged(mean: float, *, count: int = 4096) -> TensorValue:
    shape = (count // 16, 16)
    return TensorValue("torch.bfloat16", shape, 2.5, -2.5, mean, 48.0, requires_grad=True)


def test_a_mean_holds_still_where_single_elements_are_rounded(tmp_path: Path) -> None:
    """Of 4096 elements a mean moves by a sixty-fourth of what rounding does to one of them."""
    given = averaged(0.25)
    name = "Tensor.__add__.0.forward"
    reference = write(tmp_path / "reference", [(name, given, averaged(0.015625))])
    rounded = write(tmp_path / "rounded", [(name, given, averaged(0.01574))])
    moved = write(tmp_path / "moved", [(name, given, averaged(0.0175))])
    assert blame(rounded, reference).culprit is None
    answer = blame(moved, reference)
    assert answer.culprit == name
    # Its largest element would have to be off by twenty times as much.
    assert answer.first is not None and answer.first.output is not None
    assert answer.first.output < 2.0**-10
    # And it is told why so little is allowed.
    assert "(rounding, averaged over the elements)" in answer.first.cause.text


def test_a_mean_of_few_elements_may_move(tmp_path: Path) -> None:
    given = averaged(0.25, count=16)
    name = "Tensor.__add__.0.forward"
    reference = write(tmp_path / "reference", [(name, given, averaged(0.015625, count=16))])
    moved = write(tmp_path / "moved", [(name, given, averaged(0.0175, count=16))])
    assert blame(moved, reference).culprit is None


def test_a_last_digit_of_a_copys_mean_is_no_proof(tmp_path: Path) -> None:
    """Inputs with equal statistics may differ in elements that their mean does not show."""
    given = sized(1.0)
    name = "Torch.cat.0.forward"
    reference = write(tmp_path / "reference", [(name, given, sized(2.0))])
    hidden = write(tmp_path / "hidden", [(name, given, replace(sized(2.0), mean=0.2 + 1e-8))])
    moved = write(tmp_path / "moved", [(name, given, replace(sized(2.0), mean=0.2 + 1e-4))])
    assert blame(hidden, reference).culprit is None
    assert blame(moved, reference).culprit == name


def test_a_mask_that_differs_is_a_fault_for_its_inputs_are_no_floats(tmp_path: Path) -> None:
    given = TensorValue("torch.bool", (4, 4), True, True, None, None)
    name = "Torch.triu.0.forward"
    reference = write(tmp_path / "reference", [(name, given, replace(given, min=False))])
    nothing = replace(given, max=False, min=False)
    answer = blame(write(tmp_path / "candidate", [(name, given, nothing)]), reference)
    assert answer.culprit == name


def test_a_gradient_that_arrives_not_finite_is_named_though_nobody_recorded_sent_it(
    tmp_path: Path,
) -> None:
    nothing = replace(sized(1.0), max=float("nan"), min=float("nan"), norm=float("nan"))

    def run(folder: str, gradient: TensorValue) -> Path:
        return write(
            tmp_path / folder,
            [
                ("Functional.tanh.0.forward", sized(1.0), sized(0.7)),
                ("Tensor.transpose.0.forward", sized(0.7), sized(0.7)),
                ("Tensor.transpose.0.backward", gradient, gradient),
                ("Functional.tanh.0.backward", gradient, gradient),
            ],
        )

    answer = blame(run("candidate", nothing), run("reference", sized(1.0)))
    assert answer.culprit == "Tensor.transpose.0.backward"
    assert answer.first is not None and answer.first.cause.kind == "non-finite"


def test_a_gradient_that_is_only_spread_has_nothing_that_cancels(tmp_path: Path) -> None:
    """The mean of 64 makes its gradient 64 times smaller: that is no cancellation."""

    def run(folder: str, factor: float) -> Path:
        small = TensorValue("torch.bfloat16", (4,), 1.0, -1.0, 0.1, 1.5)
        wide = TensorValue("torch.bfloat16", (4, 64), 9.0, -9.0, 0.1, 40.0)
        spread = TensorValue(
            "torch.bfloat16", (4, 64), factor / 64, -factor / 64, 0.1 * factor / 64, factor / 5
        )
        calls = [("Tensor.mean.0.forward", wide, small), ("Tensor.mean.0.backward", small, spread)]
        return write(tmp_path / folder, calls)

    answer = blame(run("candidate", 0.5), run("reference", 1.0))
    assert answer.culprit == "Tensor.mean.0.backward"
    assert answer.first is not None and answer.first.cause.kind == "scale"


def test_what_the_channels_of_a_batch_norm_share_is_rounded_once_for_each(tmp_path: Path) -> None:
    """Of 12 channels in bfloat16 the factors are rounded: the norm of all moves by as much."""

    def normed(largest: float, mean: float, norm: float) -> TensorValue:
        return TensorValue("torch.bfloat16", (4, 12, 16, 16), largest, -3.9, mean, norm)

    given = replace(normed(2.578, -0.0432, 69.34), min=-2.484)
    name = "Functional.batch_norm.0.forward"
    reference = write(tmp_path / "a", [(name, given, normed(4.0625, -0.00303, 111.399))])
    rounded = write(tmp_path / "b", [(name, given, normed(4.0625, -0.00305, 111.476))])
    wrong = write(tmp_path / "c", [(name, given, normed(4.0625, -0.00305, 113.2))])
    assert blame(rounded, reference).culprit is None
    assert blame(wrong, reference).culprit == name


def test_float16_keeps_fewer_bits_of_what_is_too_small_to_be_normal(tmp_path: Path) -> None:
    def small(dtype: str, largest: float, norm: float) -> TensorValue:
        return TensorValue(dtype, (3, 48, 12), largest, -8.28e-05, 6.65e-08, norm)

    name = "Tensor.float.0.backward"
    wide = small("torch.float32", 7.4e-05, 2.8315e-4)
    for norm, culprit in ((2.8365e-4, None), (3.1e-4, name)):
        reference = write(tmp_path / "a", [(name, wide, small("torch.float16", 7.4e-5, 2.8315e-4))])
        candidate = write(tmp_path / "b", [(name, wide, small("torch.float16", 7.4e-5, norm))])
        assert blame(candidate, reference).culprit == culprit
        normal = small("torch.float16", 7.4e-5, 2.8315e-4)
        scaled = [replace(v, max=0.7, min=-0.8, mean=6.65e-4, norm=2.8315) for v in (wide, normal)]
        reference = write(tmp_path / "c", [(name, *scaled)])
        candidate = write(tmp_path / "d", [(name, scaled[0], replace(scaled[1], norm=1e4 * norm))])
        assert blame(candidate, reference).culprit == name


def test_a_call_of_which_only_one_result_moved_does_not_work_in_fewer_bits(tmp_path: Path) -> None:
    """The first product of a run may show TF32, which moves all that a call returns."""

    def record(folder: Path, *results: TensorValue) -> Path:
        given = (sized(1.0), sized(1.0))
        with DumpWriter(folder, DumpInfo(level="L1")) as writer:
            writer.write(CallRecord("VF.lstm.0.forward", inputs=given, kwargs={}, outputs=results))
        return folder

    reference = record(tmp_path / "reference", sized(2.0), sized(3.0))
    one = record(tmp_path / "one", sized(2.0002), sized(3.0))
    both = record(tmp_path / "both", sized(2.0002), sized(3.0003))
    assert blame(one, reference).culprit == "VF.lstm.0.forward"
    assert blame(both, reference).culprit is None
