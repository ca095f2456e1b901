"""The advice names the first value that fails and says what is likely the cause."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_dumps import call, tensor, write_data, write_dump

from tensorprobe.compare import compare
from tensorprobe.compare.advise import Failure, advise
from tensorprobe.compare.evidence import Answer, PartEvidence
from tensorprobe.records import CallRecord


def advice(call: str, state: str, name: str = "value") -> str:
    return advise(Failure(3, name, call, state)).text


@pytest.mark.parametrize(
    ("call", "state", "part"),
    [
        ("Torch.add.0.forward", "input", "already differs when it goes in"),
        ("Module.fc.Linear.forward.0", "parameters", "already differs when it goes in"),
        ("Torch.add.0.forward", "output", "computes something else"),
        ("Torch.add.0.backward", "input", "gradient that arrives here already differs"),
        ("Torch.add.0.backward", "output", "backward pass is computed"),
        ("Module.fc.Linear.parameters_grad", "value", "backward pass is computed"),
        ("loss.0.debug", "value", "saved value"),
        ("loss_grad.0.debug", "value", "backward pass is computed"),
        ("Functional.conv2d.0.backward", "output", "seed_all(mode=True)"),
        ("Functional.dropout.0.forward", "output", "seed_all(rm_dropout=True)"),
        ("no call at all", "output", "computes something else"),
    ],
)
def test_the_cause_depends_on_what_fails_first(call: str, state: str, part: str) -> None:
    assert part in advice(call, state)
    assert "\n" not in advice(call, state)


@pytest.mark.parametrize(
    "call",
    ["Tensor.__rand__.0.forward", "Distributed.all_gather.0.forward", "Torch.conj.0.forward"],
)
def test_a_part_of_a_name_says_nothing_of_the_operation(call: str) -> None:
    """`2 & x` was said to draw random numbers, and a collective to add up in any order."""
    assert "seed_all" not in advice(call, "output")


def test_the_file_has_three_labelled_lines(tmp_path: Path) -> None:
    ours = write_dump(tmp_path / "a", [call("Torch.abs.0.forward", [tensor(1.0)], [tensor(5.0)])])
    theirs = write_dump(tmp_path / "b", [call("Torch.abs.0.forward", [tensor(1.0)], [tensor(1.0)])])
    compare(ours, theirs, tmp_path / "o", formats=["csv"])
    (file,) = (tmp_path / "o").glob("advisor_*.txt")
    first, second, third = file.read_text().splitlines()
    assert (first, second) == ("Line: 1", "Suspect Nodes: Torch.abs.0.forward.output.0")
    assert third.startswith("Expert Advice: What goes in agrees")


def test_all_is_not_well_where_nothing_could_be_judged(tmp_path: Path) -> None:
    for side, name in (("a", "Torch.abs.0.forward"), ("b", "Torch.relu.0.forward")):
        write_dump(tmp_path / side, [call(name, [tensor(1.0)])])
    text = advice_of(tmp_path / "a", tmp_path / "b", tmp_path / "o")
    assert text.startswith("No value could be judged")
    text = advice_of(tmp_path / "a", tmp_path / "a", tmp_path / "o")
    assert text == "Every value that was compared meets the requirements."


def advice_of(ours: Path, theirs: Path, folder: Path) -> str:
    found = compare(ours, theirs, folder, formats=["csv"]).parts[0].advice
    assert found is not None
    return found.text


@pytest.mark.parametrize(("lone", "other"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_call_before_that_was_not_compared_is_named(
    tmp_path: Path, lone: str, other: str, direction: str
) -> None:
    before = call(f"Torch.mul.0.{direction}", [tensor(1.0)], [tensor(7.0)])
    calls = {lone: [before], other: []}
    for side, number in (("a", 7.0), ("b", 1.0)):
        relu = call(f"Torch.relu.0.{direction}", [tensor(number)], [tensor(number)])
        write_dump(tmp_path / side, [*calls[side], relu])
    text = advice_of(tmp_path / "a", tmp_path / "b", tmp_path / "o")
    assert f"but Torch.mul.0.{direction} is unmatched, wholly or in part" in text
    assert "no call before it fails" not in text and "although no gradient" not in text


def test_a_value_that_could_not_be_compared_is_no_call_that_passed(tmp_path: Path) -> None:
    for side, number, shape in (("a", 7.0, (2, 2)), ("b", 1.0, (4,))):
        calls = [
            call("Torch.flatten.0.forward", [tensor(1.0)], [tensor(number, shape=shape)]),
            call("Torch.relu.0.forward", [tensor(number)], [tensor(number)]),
        ]
        write_dump(tmp_path / side, calls)
    text = advice_of(tmp_path / "a", tmp_path / "b", tmp_path / "o")
    assert "but Torch.flatten.0.forward is unmatched" in text


def test_a_call_that_comes_later_is_not_blamed(tmp_path: Path) -> None:
    for side, number in (("a", 7.0), ("b", 1.0)):
        calls = [
            call("Torch.relu.0.forward", [tensor(number)], [tensor(number)]),
            call(f"Torch.{side}.0.forward", [tensor(1.0)]),
        ]
        write_dump(tmp_path / side, calls)
    text = advice_of(tmp_path / "a", tmp_path / "b", tmp_path / "o")
    assert "and no call before it fails" in text and "unmatched" not in text


def test_gradients_that_stand_early_are_not_the_first_failure(tmp_path: Path) -> None:
    for side, number in (("a", 7.0), ("b", 1.0)):
        gradients = CallRecord(
            "Module.a.Linear.parameters_grad", parameters={"weight": tensor(number)}
        )
        module = call("Module.a.Linear.forward.0", [tensor(1.0)], [tensor(1.0)])
        relu = call("Torch.relu.0.forward", [tensor(1.0)], [tensor(number)])
        write_dump(tmp_path / side, [module, gradients, relu])
        write_dump(tmp_path / f"{side}_alone", [module, gradients])
    result = compare(tmp_path / "a", tmp_path / "b", tmp_path / "o", formats=["csv"])
    first = result.parts[0].tally.first_failure
    assert first is not None and first[:2] == (4, "Torch.relu.0.forward.output.0")
    (file,) = (tmp_path / "o").glob("advisor*")
    # The file names the first row of the table, as the older tools do.
    assert file.read_text().startswith(
        "Line: 2\nSuspect Nodes: Module.a.Linear.parameters_grad.weight\nExpert Advice: This "
        "gradient stands where the run came forward, and is made when all that is there. In the "
        "order of the run Torch.relu.0.forward.output.0 (line 4) is the first that fails. What goes"
    )
    # They are, where nothing else fails.
    result = compare(tmp_path / "a_alone", tmp_path / "b_alone", tmp_path / "o", formats=["csv"])
    first = result.parts[0].tally.first_failure
    assert first is not None and first[:2] == (2, "Module.a.Linear.parameters_grad.weight")


def test_plain_arguments_that_differ_are_named(tmp_path: Path) -> None:
    name = "Functional.layer_norm.0.forward"
    sides = []
    for side, eps in (("a", 0.5), ("b", 1e-5)):
        array = np.array([1.0, 2.0], np.float32)
        dump = write_data(tmp_path / side, {name: {"input": [array], "output": [array / eps]}})
        path = next(dump.rglob("dump.json"))
        # A number has no file, so that it has no verdict of its own.
        dumped = json.loads(path.read_text())
        dumped["data"][name]["input_args"].append({"type": "float", "value": eps})
        path.write_text(json.dumps(dumped))
        sides.append(dump)
    result = compare(*sides, tmp_path / "o", formats=["csv"])
    found = result.parts[0].advice
    assert found is not None
    assert found.text.endswith(f" Its arguments differ: {name}.input.1 is 0.5 against 1e-05.")


class _Named:
    """Says that somebody is at fault, and keeps which files there were when it was asked."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        self.folder, self.answer = folder, answer
        self.found: list[str] = []

    def prepare(self) -> None:
        pass

    def __call__(
        self, parts: Sequence[PartEvidence], seconds: float, missing: Sequence[str] = ()
    ) -> Answer:
        self.found = [file.name for file in self.folder.iterdir()]
        return self.answer


@pytest.mark.parametrize("text", ["somebody is at fault.", ""])
def test_the_advice_is_written_when_it_is_known_who_is_at_fault(tmp_path: Path, text: str) -> None:
    ours = write_dump(tmp_path / "a", [call("Torch.abs.0.forward", [tensor(1.0)], [tensor(5.0)])])
    theirs = write_dump(tmp_path / "b", [call("Torch.abs.0.forward", [tensor(1.0)], [tensor(1.0)])])
    find_culprit = _Named(tmp_path / "o", Answer((), advice=text))
    result = compare(ours, theirs, tmp_path / "o", find_culprit=find_culprit)
    assert len(find_culprit.found) == 1 and find_culprit.found[0].startswith("compare_result_")
    (file,) = (tmp_path / "o").glob("advisor_*")
    assert result.files[-1] == file
    assert file.read_text().endswith(
        "Expert Advice: somebody is at fault.\n" if text else "on both sides.\n"
    )


def test_who_is_interrupted_has_the_advice_on_what_was_compared(tmp_path: Path) -> None:
    class Impatient(_Named):
        def __call__(self, *_: Any) -> Answer:
            raise KeyboardInterrupt

    dump = write_dump(tmp_path / "a", [call("Torch.abs.0.forward", [tensor(1.0)])])
    with pytest.raises(KeyboardInterrupt):
        compare(dump, dump, tmp_path / "o", find_culprit=Impatient(tmp_path / "o", Answer(())))
    (file,) = (tmp_path / "o").glob("advisor_*")
    assert file.read_text().endswith("Every value that was compared meets the requirements.\n")
