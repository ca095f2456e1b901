"""What a dump claims is bounded before anything is made for it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprobe.store import open_dump
from tensorprobe.store.entry_file import open_entry_file
from tensorprobe.store.leaf_decode import MOST_VALUES
from tensorprobe.store.leaves import leaves_of

GOOD = '"Torch.add.0.forward": {"input_args": [{"type": "int", "value": 3}], "output": []}'
# What opens and reads them needs no more than this, torch not counted: it is not imported.
MEMORY = 3 << 30


def write(folder: Path, bad: str, *, in_lines: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "dump.json"
    head = '{\n "task": "statistics",\n "level": "L1",\n "data": {\n  '
    text = f"{head}{GOOD},\n  {bad}\n }}\n}}"
    path.write_text(text if in_lines else text.replace("\n", " "))
    return path


LARGE = {
    "a million values": f'{{"input_args": [{"null, " * (MOST_VALUES + 9)}null]}}',
    "a million values inside": f'{{"input_args": [[{"null, " * (MOST_VALUES + 9)}null]]}}',
    "many lists": '{"input_args": [' + ", ".join(["[0, 0, 0]"] * (MOST_VALUES // 3)) + "]}",
    "a million dimensions": '{"input_args": [{"type": "torch.Tensor", "dtype": "torch.int8", '
    f'"shape": [{"1, " * 1_000_000}1]}}]}}',
    "a long text": f'{{"input_args": [{{"type": "str", "value": "{"x" * (20 << 20)}"}}]}}',
    "a long way": f'{{"input_args": [{{"{"k" * 100_000}": [{"null, " * 9999}null]}}]}}',
    "a long keyword": f'{{"input_kwargs": {{"{"k" * 100_000}": [{"null, " * 9999}null]}}}}',
    "deep": '{"input_args": [' + "[" * 100_000 + "]" * 100_000 + "]}",
}


@pytest.mark.parametrize("in_lines", [True, False])
@pytest.mark.parametrize("bad", LARGE.values(), ids=list(LARGE))
def test_a_record_that_claims_too_much_costs_only_itself(
    tmp_path: Path, bad: str, in_lines: bool
) -> None:
    path = write(tmp_path, f'"Torch.mul.0.forward": {bad}', in_lines=in_lines)
    (part,) = open_dump(path).parts
    assert next(iter(part)).name == "Torch.add.0.forward"
    calls = list(part)
    # A file that is parsed as a whole is bounded as a whole.
    assert part.known_gaps or (bad is LARGE["a long text"] and not in_lines)
    assert all(len(str(gap)) < 1000 for gap in part.known_gaps)
    flat = open_dump(path).parts[0]
    assert list(flat.read_leaves()) == [leaves_of(call) for call in calls]


def test_a_name_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, f'"{"a" * 20_000}": {{}}')
    (part,) = open_dump(path).parts
    assert part.names == ("Torch.add.0.forward",)
    assert "20000 characters" in str(part.known_gaps[0])


@pytest.mark.parametrize("command", ["show", "compare", "blame", "overflow"])
def test_commands_answer_with_a_line_and_little_memory(tmp_path: Path, command: str) -> None:
    # One of each way to be too large; each of them alone is read above.
    chosen = [
        LARGE[key] for key in ("a million values inside", "a long text", "a long way", "deep")
    ]
    entries = ",\n  ".join(
        f'"Torch.mul.{number}.forward": {bad}' for number, bad in enumerate(chosen)
    )
    path = write(tmp_path / "a", entries)
    arguments = [command, str(path)]
    if command in ("compare", "blame"):
        arguments.append(str(path))
    if command in ("compare", "overflow"):
        arguments += ["-o", str(tmp_path / "o")]
    done = subprocess.run(
        [sys.executable, "-m", "tensorprobe", *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert "missing: " in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 1000


@pytest.mark.parametrize("in_lines", [True, False])
def test_an_index_of_endless_calls_ends(tmp_path: Path, in_lines: bool) -> None:
    entries = ",\n  ".join(f'"Torch.mul.{number}.forward": {{}}' for number in range(500))
    # No parser takes this, so that the other layout is indexed, too.
    path = write(tmp_path, f'{entries},\n  "a": {"9" * 5000}', in_lines=in_lines)
    opened = open_entry_file(path, most_calls=100)
    assert len(opened) == 100
    assert [opened.read(name) for name in opened.names[1:]] == [{}] * 99
    assert "more than 100 calls" in opened.problems[0]


@pytest.mark.parametrize("command", ["show", "compare", "blame"])
def test_a_file_of_bytes_that_asks_for_a_petabyte_is_named(tmp_path: Path, command: str) -> None:
    import torch

    name = "Torch.mul.0.forward"
    leaf = (
        '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1125899906842624], '
        '"Max": 0.0, "Min": 0.0, "Mean": 0.0, "Norm": 0.0, "requires_grad": false, '
        '"data_name": "x.pt"}'
    )
    paths = []
    for side in ("a", "b"):
        path = write(tmp_path / side, f'"{name}": {{"input_args": [{leaf}], "output": []}}')
        path.write_text(path.read_text().replace('"statistics"', '"tensor"'))
        (tmp_path / side / "dump_tensor_data").mkdir()
        torch.save(torch.zeros(()).expand(1 << 50), tmp_path / side / "dump_tensor_data" / "x.pt")
        paths.append(str(path))
    arguments = {
        "show": [paths[0], name],
        "compare": [*paths, "-o", str(tmp_path / "o")],
        "blame": paths,
    }[command]
    done = subprocess.run(
        [sys.executable, "-m", "tensorprobe", command, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "x.pt: is an expanded tensor of" in done.stdout + done.stderr
