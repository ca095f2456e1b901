"""A write that stops at any byte costs the record that was being written, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorprobe.records import CallRecord, DumpInfo, Frame, TensorValue
from tensorprobe.store import DumpWriter, open_dump

COMPANIONS = ("stack.json.part", "construct.json.part")
FILES = ("dump.json.part", *COMPANIONS)
CALLS = 5


def record(number: int) -> CallRecord:
    return CallRecord(f"Torch.a.{number}.forward", (TensorValue("torch.float32", (number,)),))


def write(writer: DumpWriter, number: int) -> None:
    # The lines differ, so that each call brings a stack of its own too.
    stack = (Frame("train.py", number, "forward", "a(x)"),)
    assert writer.write(record(number), stack=stack, parent="Module.m.M.forward.0")


def contents(folder: Path, names: tuple[str, ...] = FILES) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[tuple[dict[str, bytes], dict[str, bytes]]]:
    """What the files hold before a record and after it."""
    folder = tmp_path / "whole"
    with DumpWriter(folder, DumpInfo(task="statistics", level="mix")) as writer:
        for number in range(CALLS):
            write(writer, number)
        before = contents(folder)
        write(writer, CALLS)
        yield before, contents(folder)


@pytest.mark.parametrize("torn", FILES)
def test_a_record_that_is_cut_costs_no_other(
    torn: str, journals: tuple[dict[str, bytes], dict[str, bytes]], tmp_path: Path
) -> None:
    before, after = journals
    # In the order in which a record is written.
    order = (*COMPANIONS, "dump.json.part")
    for name in order[: order.index(torn)]:
        before[name] = after[name]
    for size in range(len(before[torn]), len(after[torn]) + 1):
        for name in FILES:
            text = after[torn][:size] if name == torn else before[name]
            (tmp_path / name).write_bytes(text)
        part = open_dump(tmp_path / "dump.json.part").parts[0]
        names = [call.name for call in part]
        assert names[:CALLS] == [f"Torch.a.{number}.forward" for number in range(CALLS)], size
        assert len(names) <= CALLS + 1
        for number in range(CALLS):
            assert part.call(names[number]) == record(number)
            assert part.stack(names[number])[0].line == number
            assert part.parent(names[number]) == "Module.m.M.forward.0"
        assert "the dump was not closed" in part.gaps[0].problem


@pytest.mark.parametrize("lost", [0, 2])
def test_an_end_that_is_cut_costs_no_record(lost: int, tmp_path: Path) -> None:
    with DumpWriter(tmp_path, DumpInfo(task="statistics", level="mix")) as writer:
        for number in range(CALLS):
            write(writer, number)
        for number in range(lost):
            writer.note(f"call {number} is left out")
        size = (tmp_path / "dump.json.part").stat().st_size
    whole = (tmp_path / "dump.json").read_bytes()
    (tmp_path / "dump.json").unlink()
    for end in range(size, len(whole)):
        (tmp_path / "dump.json.part").write_bytes(whole[:end])
        part = open_dump(tmp_path).parts[0]
        assert [call.name for call in part] == [f"Torch.a.{n}.forward" for n in range(CALLS)], end
        assert f"the dump was not closed; {CALLS} calls are there" in part.gaps[0].problem
