"""Calls and values find their partners: by name, fuzzily, by a mapping, across tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_dumps import call, compare_rows, compared, tensor, write_data, write_dump

from tensorprobe.errors import ConfigError
from tensorprobe.pairing.match import Matcher
from tensorprobe.pairing.partners import pair_in_order
from tensorprobe.pairing.ranks import PartPair
from tensorprobe.records import CallRecord, ScalarValue
from tensorprobe.store import RankDump, open_dump

RELU = "Torch.relu.0.forward"


def part(folder: Path) -> RankDump:
    return open_dump(folder).parts[0]


def notes_of(
    candidate: Path, reference: Path, *, fuzzy: bool = False
) -> list[tuple[str, str, str, tuple[str, ...]]]:
    pair = PartPair(part(candidate), part(reference))
    matcher = Matcher(*pair, fuzzy=fuzzy)
    for _ in matcher.calls():
        pass
    return [(*note, matcher.nearest(note)) for note in matcher.notes]


def test_what_only_one_run_has_is_noted_with_what_comes_nearest(tmp_path: Path) -> None:
    ours = write_dump(tmp_path / "a", [call(RELU), call("Torch.gelu.3.forward", [tensor(1)])])
    theirs = write_dump(tmp_path / "b", [call(RELU), call("Torch.gelu.1.forward", [tensor(1)])])
    assert notes_of(ours, theirs) == [
        (
            "candidate",
            "Torch.gelu.3.forward",
            "the reference has no such call",
            ("Torch.gelu.1.forward",),
        ),
        (
            "reference",
            "Torch.gelu.1.forward",
            "the candidate has no such call",
            ("Torch.gelu.3.forward",),
        ),
    ]


def test_nothing_is_near_that_has_its_kind_alone_in_common(tmp_path: Path) -> None:
    names = (
        "Tensor.reshape.0.forward",
        "Tensor.reshape_as.0.forward",
        "Module.proj.Linear.forward.0",
    )
    ours = write_dump(tmp_path / "a", [call(name) for name in names[::2]])
    others = ("Tensor.sum.0.forward", names[1], "Module.last.Linear.forward.0")
    theirs = write_dump(tmp_path / "b", [call(name) for name in others])
    near = {name: found for _, name, _, found in notes_of(ours, theirs)}
    assert near == {
        names[0]: (names[1],),
        names[2]: (others[2],),
        others[0]: (),
        others[1]: (names[0],),
        others[2]: (names[2],),
    }


def test_a_fuzzy_note_does_not_say_that_a_call_of_that_name_is_missing(tmp_path: Path) -> None:
    ours = write_dump(tmp_path / "a", [call("Torch.abs.0.forward"), call(RELU)])
    other = "Torch.relu.1.forward"
    theirs = write_dump(tmp_path / "b", [call(RELU), call("Torch.abs.0.forward"), call(other)])
    assert notes_of(ours, theirs, fuzzy=True) == [
        ("reference", RELU, "no call of the candidate stands at its place", ())
    ]
    assert notes_of(theirs, ours, fuzzy=True) == [
        ("candidate", RELU, "no call of the reference stands at its place", ())
    ]


def test_other_shapes_dtypes_and_numbers_of_tensors_are_noted(tmp_path: Path) -> None:
    ours = write_dump(
        tmp_path / "a",
        [call(RELU, [tensor(1), tensor(1, shape=(3,)), tensor(1, dtype="int64"), tensor(1)])],
    )
    theirs = write_dump(
        tmp_path / "b",
        [call(RELU, [tensor(1), tensor(1, shape=(4,)), tensor(1)], [tensor(1)])],
    )
    assert [(side, name, why) for side, name, why, _ in notes_of(ours, theirs)] == [
        ("candidate", f"{RELU}.input.1", "shape [3] against [4]"),
        ("candidate", f"{RELU}.input.2", "torch.int64 against torch.float32"),
        ("candidate", f"{RELU}.input.3", "the call has no such value"),
        ("reference", f"{RELU}.output.0", "the call has no such value"),
    ]


def test_precisions_of_one_kind_are_compared(tmp_path: Path) -> None:
    ours = write_dump(tmp_path / "a", [call(RELU, [tensor(1, dtype="bfloat16")])])
    theirs = write_dump(tmp_path / "b", [call(RELU, [tensor(1, dtype="float32")])])
    assert notes_of(ours, theirs) == []


def test_gradients_with_and_without_a_number_match(tmp_path: Path) -> None:
    name = "Module.fc.Linear.parameters_grad"
    ours = write_dump(tmp_path / "a", [CallRecord(f"{name}.0", parameters={"bias": tensor(1)})])
    theirs = write_dump(tmp_path / "b", [CallRecord(name, parameters={"bias": tensor(1)})])
    (row,) = compared(ours, theirs, tmp_path)
    assert (row["NPU Name"], row["Bench Name"]) == (f"{name}.0.bias", f"{name}.bias")
    (row,) = compared(theirs, ours, tmp_path / "other way")
    assert (row["NPU Name"], row["Bench Name"]) == (f"{name}.bias", f"{name}.0.bias")


def test_fuzzy_aligns_calls_in_their_order(tmp_path: Path) -> None:
    ours = write_dump(
        tmp_path / "a",
        [call("Torch.abs.0.forward", [tensor(1)]), call(RELU, [tensor(2)], [tensor(2)])],
    )
    theirs = write_dump(
        tmp_path / "b",
        [
            call(RELU, [tensor(9)], [tensor(9)]),
            call("Torch.abs.0.forward", [tensor(1)]),
            call("Torch.relu.1.forward", [tensor(2)], [tensor(2)]),
        ],
    )
    rows = compared(ours, theirs, tmp_path, fuzzy=True)
    assert [row["Bench Name"] for row in rows] == [
        "Torch.abs.0.forward.input.0",
        "Torch.relu.1.forward.input.0",
        "Torch.relu.1.forward.output.0",
    ]
    assert {row["Result"] for row in rows} == {""}


def test_a_mapping_pairs_values_of_any_names_and_shapes(tmp_path: Path) -> None:
    ours = write_data(tmp_path / "a", {RELU: {"input": [np.ones((2, 2), np.float32)]}})
    theirs = write_data(
        tmp_path / "b",
        {
            "Torch.other.4.forward": {"input": [np.ones((2, 2), np.float32)]},
            "Torch.flat.0.forward": {"output": [np.ones(4, np.float32)]},
        },
    )
    name = f"{RELU}.input.0"
    (row,) = compared(ours, theirs, tmp_path, mapping={name: "Torch.other.4.forward.input.0"})
    assert (row["Bench Name"], row["Cosine"]) == ("Torch.other.4.forward.input.0", 1.0)
    (row,) = compared(
        ours, theirs, tmp_path / "shape", mapping={name: "Torch.flat.0.forward.output.0"}
    )
    assert (row["Cosine"], row["Accuracy Reached or Not"]) == ("shape unmatched", "Unmatched")
    assert row["Err_message"] == "Shape of NPU and bench Tensor do not match. Skipped."


def test_names_of_a_mapping_that_are_not_there_are_noted(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU, [tensor(1)])])
    pair = PartPair(part(dump), part(dump))
    matcher = Matcher(*pair, mapping={f"{RELU}.input.0": "nothing", "none": f"{RELU}.input.0"})
    (matched,) = matcher.calls()
    assert matched.pairs[0].reference is not None
    assert [(note.side, note.name) for note in matcher.notes] == [
        ("reference", "nothing"),
        ("candidate", "none"),
    ]


def test_a_call_that_a_mapping_names_still_matches_its_own_name(tmp_path: Path) -> None:
    calls = [call(RELU, [tensor(1)]), call("Torch.relu.1.forward", [tensor(1)])]
    dump = write_dump(tmp_path / "a", calls)
    rows = compared(
        dump, dump, tmp_path, mapping={f"{RELU}.input.0": "Torch.relu.1.forward.input.0"}
    )
    assert [row["Bench Name"] for row in rows] == ["Torch.relu.1.forward.input.0"] * 2


def test_a_mapping_excludes_fuzzy(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU)])
    with pytest.raises(ConfigError, match="exclude each other"):
        compared(dump, dump, tmp_path, fuzzy=True, mapping={"a": "b"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "wanted lines such as"),
        ("- a\n- b\n", "wanted lines such as"),
        ("a: 3\n", "is no pair of names"),
        ("a: b\na: c\n", "stands here twice"),
        ("a: [b\n", "not YAML"),
    ],
)
def test_a_bad_mapping_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    dump = write_dump(tmp_path / "a", [call(RELU)])
    file = tmp_path / "map.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        compared(dump, dump, tmp_path, mapping=file)
    assert "map.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_keywords_match_whether_or_not_they_have_data(tmp_path: Path) -> None:
    record = CallRecord("Torch.sum.0.forward", kwargs={"dim": ScalarValue("int", 1)})
    dump = write_dump(tmp_path / "a", [record])
    (row,) = compared(dump, dump, tmp_path)
    assert row["NPU Name"] == row["Bench Name"] == "Torch.sum.0.forward.input.dim"


def linear_backward(folder: Path, outputs: list[np.ndarray], tool: str) -> Path:
    name = "Functional.linear.0.backward"
    write_data(folder, {name: {"input": [np.ones((2, 3), np.float32)], "output": outputs}})
    if tool == "msprobe":
        # What our writer says of itself is all that tells the two apart.
        path = next(folder.rglob("dump.json"))
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"tensorprobe":' not in line))
        assert part(folder).info.tool == "msprobe"
    return folder


@pytest.mark.parametrize("sizes", [((2, 4), (3, 4), (3,)), ((4, 4), (4, 4), (4,))])
@pytest.mark.parametrize("first", ["tensorprobe", "msprobe"])
def test_gradients_of_a_linear_match_across_tools(
    tmp_path: Path, first: str, sizes: list[tuple[int, ...]]
) -> None:
    """In the order of the arguments here, in autograd's own order there."""
    numbers = np.random.default_rng(0)
    source, weight, bias = (numbers.normal(size=size).astype(np.float32) for size in sizes)
    ours = linear_backward(tmp_path / "ours", [source, weight, bias], "tensorprobe")
    theirs = linear_backward(tmp_path / "theirs", [bias, source, weight.T], "msprobe")
    sides = (ours, theirs) if first == "tensorprobe" else (theirs, ours)
    result, rows = compare_rows(*sides, tmp_path)
    assert result.failed == 0
    assert [row["Cosine"] for row in rows] == pytest.approx([1.0] * 4)
    assert [row["MaxAbsErr"] for row in rows] == [0.0] * 4
    places = [row["Bench Name"][-8:] for row in rows[1:]]
    wanted = (
        ["output.1", "output.2", "output.0"]
        if first == "tensorprobe"
        else ["output.2", "output.0", "output.1"]
    )
    assert places == wanted


def test_a_gradient_is_paired_by_its_shape_across_tools(tmp_path: Path) -> None:
    """Of an embedding, ours has the indices' place first; autograd's node has the weight alone."""
    name = "Functional.embedding.0.backward"
    ours = write_dump(tmp_path / "a", [call(name, [tensor(1)], [None, tensor(3, shape=(5, 2))])])
    theirs = write_dump(tmp_path / "b", [call(name, [tensor(1)], [tensor(3, shape=(5, 2))])])
    path = next(theirs.rglob("dump.json"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"tensorprobe":' not in line))
    rows = compared(ours, theirs, tmp_path)
    assert [row["Bench Name"] for row in rows] == [f"{name}.input.0", "N/A", f"{name}.output.0"]


NAMES = st.lists(st.sampled_from("abcd"), max_size=30)


@given(ours=NAMES, theirs=NAMES)
def test_alignment_is_as_long_as_possible_and_never_crosses(
    ours: list[str], theirs: list[str]
) -> None:
    def numbered(keys: list[str]) -> list[str]:
        return [f"Torch.{key}.{number}.forward" for number, key in enumerate(keys)]

    candidate, reference = numbered(ours), numbered(theirs)
    pairs = [
        (candidate.index(a), reference.index(b))
        for a, b in pair_in_order(candidate, reference).items()
    ]
    assert all(ours[a] == theirs[b] for a, b in pairs)
    assert pairs == sorted(pairs) and len({b for _, b in pairs}) == len(pairs)
    longest = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for a, key in enumerate(ours, start=1):
        for b, other in enumerate(theirs, start=1):
            above = max(longest[a - 1][b], longest[a][b - 1])
            longest[a][b] = longest[a - 1][b - 1] + 1 if key == other else above
    assert len(pairs) == longest[-1][-1]


def test_two_long_runs_with_little_in_common_align_soon() -> None:
    ours = [f"Torch.{'abc'[n % 3]}.{n}.forward" for n in range(5000)]
    theirs = [f"Torch.{'cbad'[n % 4]}.{n}.forward" for n in range(5000)]
    assert len(pair_in_order(ours, theirs)) > 1000
