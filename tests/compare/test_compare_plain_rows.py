"""The compiled maker of pairs and rows makes what Python makes, or leaves it to Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorprobe.compare.call_rows import Row
from tensorprobe.compare.plain_rows import PlainRows, load_plain_rows
from tensorprobe.compare.rows import RowMaker
from tensorprobe.pairing.match import MatchedCall, Pair
from tensorprobe.store import Leaf

CALL = "Torch.add.0.forward"

needs_compiled = pytest.mark.skipif(load_plain_rows() is None, reason="nothing was compiled")

numbers = st.floats() | st.sampled_from((0.0, -0.0, 1.0, 1.5, 5e-324, 1e308, None, True, 3, "x"))
leaves = st.builds(
    Leaf,
    st.sampled_from(("input.0", "output.1", "kwargs.dim", "", "weight", "input.ü", "\ud800")),
    st.sampled_from(("tensor", "tensor", "int", "none", "not recorded", "slice")),
    st.sampled_from(("torch.float32", "torch.bfloat16")),
    st.sampled_from(((), (2,), (3, 4))),
    *[numbers] * 4,
    st.sampled_from((True, False, None)),
    st.none(),
    st.sampled_from((None, "a.pt")),
)
pairs = st.builds(Pair, leaves, st.none() | leaves, st.sampled_from((CALL, "Torch.add.1.forward")))


def compiled() -> PlainRows:
    maker = load_plain_rows()
    assert maker is not None
    return maker


def tensor(*numbers: float, place: str = "input.0", grad: bool | None = True) -> Leaf:
    return Leaf(place, "tensor", "torch.float32", (2,), *numbers, grad, None, None)


def made_by_both(pairs: list[Pair]) -> tuple[list[Row], list[Row]]:
    call = MatchedCall(CALL, pairs)
    ours = RowMaker("statistics", None, is_fuzzy=False).make(call, iter(()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROBE_NO_KERNEL", "1")
        theirs = RowMaker("statistics", None, is_fuzzy=False).make(call, iter(()))
    return ours.rows, theirs.rows


@needs_compiled
@settings(max_examples=1000, deadline=None)
@given(st.lists(pairs, max_size=4))
@example([Pair(tensor(1e308, 1.0, 1.0, 1.0), tensor(-1e308, 1.0, 1.0, 1.0), CALL)])
@example([Pair(tensor(1.0, 1.0, 1.0, 1.0), tensor(1e-307, 1.0, 1.0, 1.0), CALL)])
@example([Pair(tensor(0.0, 1.0, 1.0, 1.0), tensor(-0.0, 1.5, 2.0, 2.1), CALL)])
@example([Pair(tensor(*[1.0] * 4), tensor(*[1.0] * 4, grad=None), "Torch.add.1.forward")])
def test_rows_are_the_same_with_and_without_it(pairs: list[Pair]) -> None:
    ours, theirs = made_by_both(pairs)
    # The text tells 0.0 from -0.0 and True from 1, and keeps NaN comparable.
    assert repr(ours) == repr(theirs)
    assert all(type(row) is Row for row in ours)


@needs_compiled
def test_python_is_asked_for_what_is_unusual_alone() -> None:
    usual = Pair(tensor(1.0, 2.0, 3.0, 4.0), tensor(1.0, 2.0, 0.0, 4.0), CALL)
    unmatched = Pair(tensor(1.0, 2.0, 3.0, 4.0), None, "")
    asked: list[Any] = []
    rows = compiled().statistics_rows(CALL, [usual, unmatched], lambda *row: asked.append(row))
    assert [row.verdict for row in rows] == ["failed"]
    assert asked == [(CALL, unmatched)]


@needs_compiled
def test_an_error_in_the_unusual_row_is_passed_on() -> None:
    def refuse(_: str, __: Pair) -> Row:
        raise LookupError("no such row")

    with pytest.raises(LookupError, match="no such row"):
        compiled().statistics_rows(CALL, [Pair(tensor(1.0, 2.0, 3.0, 4.0), None, "")], refuse)


@needs_compiled
def test_calls_whose_values_look_alike_are_paired_in_their_order() -> None:
    ours = [tensor(1.0, 2.0, 3.0, 4.0), tensor(1.0, 2.0, 3.0, 4.0, place="output.0")]
    theirs = [leaf._replace(max=5.0, requires_grad=False) for leaf in ours]
    pairs = compiled().alike_pairs(ours, theirs, "Torch.add.1.forward")
    wanted = [Pair(a, b, "Torch.add.1.forward") for a, b in zip(ours, theirs, strict=True)]
    assert pairs == wanted
    assert [type(pair) for pair in pairs or ()] == [Pair, Pair]


@needs_compiled
@pytest.mark.parametrize(
    "change", [{"place": "input.1"}, {"dtype": "torch.float16"}, {"shape": (2, 1)}]
)
def test_calls_whose_values_differ_are_left_to_python(change: dict[str, Any]) -> None:
    ours = [tensor(1.0, 2.0, 3.0, 4.0)]
    assert compiled().alike_pairs(ours, [ours[0]._replace(**change)], CALL) is None
    assert compiled().alike_pairs(ours, [], CALL) is None
