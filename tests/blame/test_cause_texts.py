"""What is said of a fault is true: flipped bits, settings of modules, units of the numbers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import Kernels, aten, capture, scaled, with_element
from torch import nn

from tensorprobe import blame
from tensorprobe.blame.causes import is_flipped_exponent
from tensorprobe.blame.text import conclusion_lines
from tensorprobe.cli import main


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _number(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@given(
    st.floats(min_value=2.0**-60, max_value=2.0**60, width=32),
    st.integers(min_value=0, max_value=30),
)
def test_a_flipped_bit_is_one_of_the_exponent_or_not(value: float, bit: int) -> None:
    flipped = _number(_bits(value) ^ (1 << bit))
    if 2.0**-120 < abs(flipped) < 2.0**120:
        assert is_flipped_exponent(flipped, value, "torch.float32", 0.0) == (bit >= 23)


@pytest.mark.parametrize("factor", [2.0, 4.0, 0.5, 0.25])
def test_a_factor_of_two_is_a_flipped_bit_only_where_one_bit_makes_it(factor: float) -> None:
    for value in (1.5, 3.0, 6.0, 12.0):
        changed = bin(_bits(value) ^ _bits(value * factor)).count("1")
        said = is_flipped_exponent(value * factor, value, "torch.float32", 0.0)
        assert said == (changed == 1)


def test_about_twice_as_much_is_no_flipped_bit() -> None:
    assert not is_flipped_exponent(0.7551, 1.5, "torch.float32", 1e-6)
    assert is_flipped_exponent(0.7500001, 1.5, "torch.float32", 1e-6)
    assert not is_flipped_exponent(-0.75, 1.5, "torch.float32", 1e-6)


def _told(candidate: Path, reference: Path) -> dict[str, str]:
    lines = conclusion_lines(blame(candidate, reference))
    return {line[:12].strip(): line[12:] for line in lines}


def test_each_number_says_what_it_is_a_part_of(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference")
    wrong = Kernels(aten.gelu, 0, with_element(lambda x: x * 1.3))
    told = _told(capture(tmp_path / "element", wrong), reference)
    assert " of the norm; made here " in told["output"]
    assert "at its worst element" in told["output"]
    assert told["kind"].startswith("corruption: 1 of 1536 elements is wrong")
    wrong = Kernels(aten.gelu, 0, with_element(lambda x: x * 1.3))
    told = _told(capture(tmp_path / "no_data", wrong, task="statistics"), reference)
    assert " of the size, " in told["output"]


def _set_eps(model: nn.Module) -> None:
    model.norm.eps = 1e-2  # type: ignore[assignment]


def test_a_module_that_is_set_otherwise_is_no_matter_of_scale(tmp_path: Path) -> None:
    reference = capture(tmp_path / "reference", level="L0")
    first = blame(capture(tmp_path / "eps", prepare=_set_eps, level="L0"), reference).first
    assert first is not None and first.cause.kind == "argument"
    assert "what eps 0.01 gives, the reference's what eps 1e-05 gives" in first.cause.text
    wrong = Kernels(aten.native_layer_norm, 0, scaled(1.01))
    first = blame(capture(tmp_path / "scale", wrong, level="L0"), reference).first
    assert first is not None and first.cause.kind == "scale"
    assert "another eps has much the same effect" in first.cause.text


@pytest.mark.parametrize("size", [1e-3, 0.3])
def test_compare_and_blame_name_the_same_kind(
    size: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = capture(tmp_path / "reference")
    changes = {
        "element": (aten.gelu, with_element(lambda x: x * (1 + 10 * size))),
        "scale": (aten.gelu, scaled(1 + size)),
        "place": (aten.embedding, lambda result, args: result.roll(1, 0)),
    }
    for name, (packet, change) in changes.items():
        candidate = capture(tmp_path / name, Kernels(packet, 0, change))
        folder = str(tmp_path / f"{name}_out")
        assert main(["compare", str(candidate), str(reference), "-o", folder]) == 0
        lines = capsys.readouterr().out.splitlines()
        said = next(line for line in lines if line.startswith("kind "))
        first = blame(candidate, reference).first
        assert first is not None
        assert said.split(":")[0].split()[-1] == first.cause.kind
