"""Who says that all agrees hides nothing that was not compared."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe.blame import blame
from tensorprobe.cli import main

RELU = "Functional.relu.0.forward"
MAX = "Torch.max.0.forward"
Calls = dict[str, Any]
Files = dict[str, bytes | torch.Tensor | None]


def tensor(
    name: str, shape: tuple[int, ...] = (2, 3), dtype: str = "torch.float32"
) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": list(shape),
        "Max": 1.0,
        "Min": 0.0,
        "Mean": 0.5,
        "Norm": 1.5,
        "requires_grad": False,
        "data_name": f"{name}.pt",
    }


def usual_calls() -> Calls:
    return {
        RELU: {
            "input_args": [tensor(f"{RELU}.input.0")],
            "input_kwargs": {},
            "output": [tensor(f"{RELU}.output.0")],
        },
        MAX: {
            "input_args": [tensor(f"{MAX}.input.0")],
            "input_kwargs": {"dim": {"type": "int", "value": 1}},
            "output": [
                tensor(f"{MAX}.output.0", (2,)),
                tensor(f"{MAX}.output.1", (2,), "torch.int64"),
            ],
        },
        "Tensor.item.0.forward": {
            "input_args": [],
            "input_kwargs": {},
            "output": [{"type": "float", "value": 4.5}],
        },
    }


def write(folder: Path, calls: Calls, files: Files | None = None) -> str:
    """Write a dump with data; `files` stand in place of the right ones, None for no file."""
    data = folder / "dump_tensor_data"
    data.mkdir(parents=True)
    entries = ",\n".join(
        f"  {json.dumps(name)}: {record if isinstance(record, str) else json.dumps(record)}"
        for name, record in calls.items()
    )
    top = ' "task": "tensor",\n "level": "L1",\n "framework": "pytorch",\n "dump_data_dir": null,\n'
    (folder / "dump.json").write_text(f'{{\n{top} "data": {{\n{entries}\n }}\n}}')
    for record in usual_calls().values():
        for leaf in (*record["input_args"], *record["output"]):
            if "data_name" in leaf:
                shape, is_float = leaf["shape"], leaf["dtype"] == "torch.float32"
                values = torch.linspace(0, 1, torch.Size(shape).numel()).reshape(shape)
                torch.save(values if is_float else values.long(), data / leaf["data_name"])
    for name, content in (files or {}).items():
        (data / name).unlink()
        if isinstance(content, bytes):
            (data / name).write_bytes(content)
        elif content is not None:
            torch.save(content, data / name)
    return str(folder)


def drop_output(calls: Calls) -> None:
    calls[MAX]["output"].pop()


def blank_output(calls: Calls) -> None:
    calls[MAX]["output"][1] = None


def other_number(calls: Calls) -> None:
    calls["Tensor.item.0.forward"]["output"][0]["value"] = 5.0


def odd_shape(calls: Calls) -> None:
    calls[MAX]["input_args"][0]["shape"] = [-1]


def damaged_record(calls: Calls) -> None:
    calls[RELU] = "[1,,]"


def unknown_name(calls: Calls) -> None:
    calls["nonsense"] = {"input_args": [], "output": []}


def missing_call(calls: Calls) -> None:
    del calls[RELU]


def no_outputs(calls: Calls) -> None:
    del calls[RELU]["output"]


def other_keyword(calls: Calls) -> None:
    calls[MAX]["input_kwargs"]["dim"] = {"type": "weird"}


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        drop_output,
        blank_output,
        other_number,
        odd_shape,
        damaged_record,
        unknown_name,
        missing_call,
        no_outputs,
        other_keyword,
    ],
)
def test_what_one_record_lacks_is_not_called_agreement(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Calls], None],
    is_swapped: bool,
) -> None:
    calls = usual_calls()
    change(calls)
    pair = [write(tmp_path / "a", calls), write(tmp_path / "b", usual_calls())]
    if is_swapped:
        pair.reverse()
    answer = blame(*pair)
    assert (answer.culprit, answer.verdict) == (None, "incomplete")
    assert answer.uncompared and answer.uncompared[0] in answer.summary
    assert "all" not in answer.summary.split()
    main(["compare", *pair, "-o", str(tmp_path / "o")])
    verdict = capsys.readouterr().out.splitlines()[0]
    # In the tables an unknown name is a name like any other.
    if change is not unknown_name:
        assert "everything" not in verdict
        assert "not" in verdict


KEY = f"{RELU}.output.0.pt"


@pytest.mark.parametrize("sides", ["candidate", "reference", "both"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(torch.zeros(5), id="another shape"),
        pytest.param(torch.linspace(0, 1, 6).reshape(2, 3).double(), id="another dtype"),
        pytest.param(b"", id="empty"),
        pytest.param(b"x" * 500, id="no tensor"),
        pytest.param(None, id="missing"),
    ],
)
def test_data_that_contradict_their_record_are_not_called_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, sides: str
) -> None:
    wrong: Files = {KEY: content}
    pair = [
        write(tmp_path / side, usual_calls(), wrong if sides in (side, "both") else None)
        for side in ("candidate", "reference")
    ]
    answer = blame(*pair)
    assert answer.verdict == "incomplete"
    assert KEY in answer.summary
    assert main(["compare", *pair, "-o", str(tmp_path / "o")]) == 2
    captured = capsys.readouterr()
    assert "everything" not in captured.out.splitlines()[0]
    assert KEY in captured.err


def test_a_rank_that_one_run_lacks_is_not_called_agreement(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / "a" / "step0" / f"rank{rank}", usual_calls())
    write(tmp_path / "b" / "step0" / "rank0", usual_calls())
    answer = blame(tmp_path / "a", tmp_path / "b")
    assert answer.verdict == "incomplete"
    assert "rank1" in answer.summary


def test_a_name_that_is_no_calls_costs_only_itself(tmp_path: Path) -> None:
    calls = usual_calls()
    calls |= {name: copy.deepcopy(calls[RELU]) for name in ("nonsense", "Distributed.x", "", "a.b")}
    worse = copy.deepcopy(calls)
    worse[RELU]["output"][0] |= {"Max": 900.0, "Norm": 900.0}
    values = torch.linspace(0, 900, 6).reshape(2, 3)
    pair = [write(tmp_path / "a", worse, {KEY: values}), write(tmp_path / "b", calls)]
    assert blame(*pair).culprit == RELU


def test_another_device_is_no_difference(tmp_path: Path) -> None:
    pair = []
    for side, device in (("a", "npu:0"), ("b", "cuda:0")):
        calls = usual_calls()
        calls[MAX]["input_kwargs"]["device"] = {"type": "torch.device", "value": device}
        pair.append(write(tmp_path / side, calls))
    assert blame(*pair).verdict == "identical"


def test_numbers_that_are_not_numbers_agree(tmp_path: Path) -> None:
    calls = usual_calls()
    calls["Tensor.item.0.forward"]["output"][0]["value"] = float("nan")
    pair = [write(tmp_path / side, copy.deepcopy(calls)) for side in ("a", "b")]
    assert blame(*pair).verdict == "identical"
