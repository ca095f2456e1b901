"""Files that people write: what is read, and the one line that says why a file is not."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from counted_work import at_most_lines
from tensorprobe.errors import ConfigError, DumpError, TensorprobeError
from tensorprobe.system.text_file import read_json, read_yaml, show_path

Reader = Callable[..., object]

MAPPING = """\
# candidate: reference
Torch.matmul.0.forward: Torch.matmul.1.forward
Module.proj.Linear.forward.0: Module.dense.Linear.forward.0
step: [0, 1, 4-6]
switch: yes
limit: 0.5
empty:
nested:
  api: ["Distributed.all_reduce", 'relu']
  text: |
    two
    lines
"""
COMPARE = """\
{
  "npu_path": "./npu_dump/step0",
  "bench_path": "./bench_dump/step0",
  "is_print_compare_log": true,
  "limits": [1, -2.5e-3, NaN, null, {"a": "\\u00e9\\n"}]
}
"""


def refusal(read: Reader, path: Path, **options: type[TensorprobeError]) -> str:
    """Give the message after the file's name, once it is known to be one line of that file."""
    with pytest.raises(DumpError if not options else options["error"]) as caught:
        read(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def write(folder: Path, content: str | bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Both readers -------------------------------------------------------------------------------------

both = pytest.mark.parametrize("read", [read_json, read_yaml])


def test_json_gives_its_values(tmp_path: Path) -> None:
    value = read_json(write(tmp_path, COMPARE))
    assert isinstance(value, dict)
    assert value["npu_path"] == "./npu_dump/step0"
    assert value["limits"][:2] == [1, -2.5e-3]
    assert math.isnan(value["limits"][2])
    assert value["limits"][3:] == [None, {"a": "é\n"}]


@pytest.mark.parametrize("with_libyaml", [True, False])
def test_yaml_gives_the_values_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_libyaml: bool
) -> None:
    if not with_libyaml:
        monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    assert read_yaml(write(tmp_path, MAPPING)) == {
        "Torch.matmul.0.forward": "Torch.matmul.1.forward",
        "Module.proj.Linear.forward.0": "Module.dense.Linear.forward.0",
        "step": [0, 1, "4-6"],
        "switch": True,
        "limit": 0.5,
        "empty": None,
        "nested": {"api": ["Distributed.all_reduce", "relu"], "text": "two\nlines\n"},
    }


@both
def test_a_byte_order_mark_is_skipped(tmp_path: Path, read: Reader) -> None:
    assert read(write(tmp_path, b'\xef\xbb\xbf{"a": "\xc3\xa9"}')) == {"a": "é"}


@both
def test_the_caller_chooses_the_class_of_the_error(tmp_path: Path, read: Reader) -> None:
    assert refusal(read, tmp_path / "absent", error=ConfigError)


@both
def test_a_missing_file_is_named(tmp_path: Path, read: Reader) -> None:
    message = refusal(read, tmp_path / "absent")
    assert message == "the file cannot be read: No such file or directory; check the path"


@both
def test_a_name_that_no_file_can_have_is_refused(read: Reader) -> None:
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(DumpError) as caught:
            read(name)
        assert str(caught.value) == f"{name!r}: no file can have this name; check the path"


@both
def test_a_folder_is_refused(tmp_path: Path, read: Reader) -> None:
    assert refusal(read, tmp_path) == "this is a folder; give the file inside it"


@both
@pytest.mark.usefixtures("must_end")
def test_a_pipe_is_refused_at_once(tmp_path: Path, read: Reader) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(read, pipe) == "this is no regular file; copy its content into one"


@both
def test_a_refused_file_is_closed(tmp_path: Path, read: Reader) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        refusal(read, tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@both
def test_a_huge_file_is_refused(tmp_path: Path, read: Reader) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    message = refusal(read, path)
    assert message == "the file is larger than 64 MiB; this cannot be the one meant"


@both
def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path, read: Reader) -> None:
    message = refusal(read, write(tmp_path, b'{"a": 1,\n"b": "\xb0"}'))
    assert message == "line 2: the text is not UTF-8; save the file as UTF-8"


@both
def test_utf16_is_refused(tmp_path: Path, read: Reader) -> None:
    path = write(tmp_path, '{"a": 1}'.encode("utf-16"))
    assert refusal(read, path) == "the file is UTF-16; save it as UTF-8"


@both
def test_deep_nesting_is_refused(tmp_path: Path, read: Reader) -> None:
    path = write(tmp_path, "[" * 100_000 + "]" * 100_000)
    assert refusal(read, path).endswith("the values are nested too deeply; flatten them")


@both
def test_a_number_with_too_many_digits_is_refused(tmp_path: Path, read: Reader) -> None:
    message = refusal(read, write(tmp_path, '{"a": 1,\n "b": ' + "7" * 5000 + "}"))
    assert message == (
        "line 2, column 7: a number has 5000 characters, at most 1000 are read; shorten it"
    )


@both
def test_a_repeated_key_is_refused_with_its_place(tmp_path: Path, read: Reader) -> None:
    message = refusal(read, write(tmp_path, '{"step": [0],\n "rank": [], "step": [1]}'))
    assert message == "line 2, column 14: the key 'step' stands here twice; keep one of them"


def test_a_path_stays_on_one_line() -> None:
    assert show_path("a\nb.json") == r"'a\nb.json'"
    assert show_path("") == "''"
    assert show_path(Path("数据/config.json")) == "数据/config.json"


def test_reading_loads_neither_torch_nor_numpy_nor_yaml() -> None:
    code = (
        "import sys, tensorprobe.system.text_file; "
        "print(sorted({'torch', 'numpy', 'yaml'} & {*sys.modules}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


# JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "mark"),
    [
        (
            '{\n "npu_path": "./npu",  # up to the step\n "bench_path": "./b"\n}',
            "2, column 24",
            "#",
        ),
        ('{\n "npu_path": "./npu"  // the candidate\n}', "2, column 23", "//"),
        ('{"a": 1 /* one */}', "1, column 9", "/*"),
        ('// first\n{"a": "http://x#y"}', "1, column 1", "//"),
        ('{"a": [1, # one\n 2]}', "1, column 11", "#"),
        ('{"a": 1}\n# last', "2, column 1", "#"),
    ],
)
def test_a_comment_in_json_is_called_one(tmp_path: Path, text: str, place: str, mark: str) -> None:
    assert refusal(read_json, write(tmp_path, text)) == (
        f"line {place}: comments are not allowed in JSON; remove the text from {mark!r} on"
    )


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('{"a": [1, 2,]}', None, "nothing follows the last comma; remove the comma"),
        ('{"a": 1,}', None, "nothing follows the last comma; remove the comma"),
        ("{'a': 1}", "1, column 2", "texts stand in double quotes; replace ' by \""),
        ('{"a": True}', "1, column 7", "write true, false or null, in small letters"),
        ('{"a": 1} {}', "1, column 10", "something follows the end of the value; remove it"),
        ('{"a":\n', "2, column 1", "the file ends too early; close its brackets"),
        ('{"a": "x}', "1, column 7", "the text that starts here is not closed; add a quote"),
        ('{"a": "C:\\data"}', None, "a backslash stands alone; write it twice, or / in a path"),
        ('{"a": "x\ny"}', None, "a text holds a line break or a tab; close its quotes before it"),
        ('{"a" 1}', "1, column 6", "expecting ':' delimiter, found '1'"),
        ('{"a": "http://x" "b#c"}', "1, column 18", "expecting ',' delimiter, found '\"'"),
    ],
)
def test_broken_json_is_explained(
    tmp_path: Path, text: str, place: str | None, problem: str
) -> None:
    message = refusal(read_json, write(tmp_path, text))
    where, _, explained = message.partition(": ")
    assert explained == f"this is not JSON: {problem}"
    assert place is None or where == f"line {place}"


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_json_is_refused(tmp_path: Path, text: str) -> None:
    message = refusal(read_json, write(tmp_path, text))
    assert message == "the file is empty, wanted JSON; write at least {}"


def test_a_repeated_key_whose_place_is_doubtful_is_only_named(tmp_path: Path) -> None:
    message = refusal(read_json, write(tmp_path, '[{"a": 1}, {"a": 1, "a": 2}]'))
    assert message == "the key 'a' stands here twice; keep one of them"


@pytest.mark.usefixtures("must_end")
def test_one_long_line_is_explained_without_delay(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a": [' + '"x\\"y#", ' * 300_000 + "# end\n]}")
    assert "comments are not allowed" in refusal(read_json, path)


# YAML ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x\n", "2, column 4: aliases (*name) are not read here; write the value, or"),
        ("list: [*relu]", "1, column 8: aliases (*name) are not read here; write the value, or"),
        ("a: 1\n---\nb: 2\n", "2, column 1: a second document starts; keep one document in a file"),
        ("a: !!python/name:os.system x", "1, column 4: the tag 'tag:yaml.org,2002:python/name:os"),
        ("a: !mine [1]", "1, column 4: the tag '!mine' is not read here; write a plain value"),
        ("a: !!set {b}", "1, column 4: the tag 'tag:yaml.org,2002:set' is not read here; write"),
        ("<<: {a: 1}", "1, column 1: merge keys (<<) are not read here; write the fields out"),
        ("? [a, b]\n: 1", "1, column 3: a key is a list or a mapping; write a plain text as the"),
        ("a: !!bool maybe", "1, column 4: 'maybe' looks like a value of type bool and is none;"),
        ("a: 0b_", "1, column 4: '0b_' looks like a value of type int and is none; quote it"),
        ("a: !!int ''", "1, column 4: '' looks like a value of type int and is none; quote it"),
        ("a: [1, 2\nb: 3\n", "2, column 2: this is not YAML: did not find expected ',' or ']'"),
        ("a: b: c", "1, column 5: this is not YAML: mapping values are not allowed in this cont"),
        ("é: 1\nb: \x00\n", "2, column 4: YAML forbids '\\x00' here; remove it"),
    ],
)
def test_what_yaml_may_not_hold_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(read_yaml, write(tmp_path, text)).startswith(f"line {message}")


@pytest.mark.parametrize("with_libyaml", [True, False])
@pytest.mark.parametrize("text", ["a:\n\tb: 2\n", "a: 1\n\tb: 2\n"])
def test_a_tab_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, with_libyaml: bool
) -> None:
    if not with_libyaml:
        monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    message = refusal(read_yaml, write(tmp_path, text))
    assert message.startswith("line 2, column 1: this is not YAML: ")
    assert message.endswith("; indent with spaces instead of tabs")


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    path = write(tmp_path, "\n".join(lines))
    with at_most_lines(1000):
        assert "aliases" in refusal(read_yaml, path)


def test_empty_yaml_is_none_and_a_date_stays_text(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "# nothing\n")) is None
    assert read_yaml(write(tmp_path, "a: 2024-01-31\n")) == {"a": "2024-01-31"}


def test_missing_pyyaml_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert refusal(read_yaml, write(tmp_path, "a: 1")) == (
        "reading YAML needs PyYAML, which is not installed; "
        "run 'pip install pyyaml' or write the file as JSON"
    )


# Anything at all ----------------------------------------------------------------------------------

SNIPPETS = ["{", "}", "[", "]", ":", ",", '"', "'", "#", "&a", "*a", "!", "!!", "|", ">", "%", "@"]
SNIPPETS += [
    "- ",
    "? ",
    "<<: ",
    "\n",
    "\t",
    "\0",
    "\ufeff",
    "é",
    "\U0001f600",
    "0x",
    "1e999",
    "---",
]


def mutate(text: str, chance: random.Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[place : place + chance.randint(1, 8)] = b""
            case 1:
                data[place:place] = chance.choice(SNIPPETS).encode()
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case _:
                other = chance.randrange(len(data) + 1)
                data[place:place] = data[other : other + chance.randint(1, 30)]
    return bytes(data)


@pytest.mark.parametrize(("read", "text"), [(read_json, COMPARE), (read_yaml, MAPPING)])
def test_a_damaged_file_gives_a_value_or_one_line(tmp_path: Path, read: Reader, text: str) -> None:
    chance = random.Random(20240229)
    refused = 0
    for _ in range(600):
        path = write(tmp_path, mutate(text, chance))
        try:
            read(path)
        except TensorprobeError as err:
            refused += 1
            assert "\n" not in str(err)
            assert str(err).startswith(f"{path}: ")
    assert 100 < refused < 600
