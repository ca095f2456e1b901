"""No text of a dump commands the terminal, hides, reorders or forges a line: in no output."""

from __future__ import annotations

import csv
import json
import os
import pty
import subprocess
import sys
import zipfile
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest

from conftest import REPOSITORY
from hostile_dump import HOSTILE, commands_in, write_hostile_dump
from tensorprobe.report.console import QuietConsole
from tensorprobe.report.overflow_text import OriginLine, print_overflow_end
from tensorprobe.report.precheck_text import CallLine, print_precheck
from tensorprobe.system.clean_text import clean_text, one_line

# The name of the folder that the dumps are in is a text of somebody's, too.
ODD = "odd \x1b[31m\u202e\nforged line"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps") / ODD
    folder.mkdir()
    write_hostile_dump(folder / "ours", is_off=True)
    write_hostile_dump(folder / "theirs")
    write_hostile_dump(folder / "ours without data", is_off=True, task="statistics")
    write_hostile_dump(folder / "theirs without data", task="statistics")
    write_hostile_results(folder / "results")
    return folder


def write_hostile_results(folder: Path) -> None:
    """Write the results of two ranks, one of them damaged, and what of them is to be merged."""
    folder.mkdir()
    name = f"Distributed.{HOSTILE}.0"
    titles = ["NPU Name", "Max diff", "NPU max", "Bench max"]
    for rank, rest in ((0, []), (1, ["short"])):
        with (folder / f"compare_result_rank{rank}_20260102030405.csv").open("w") as file:
            rows = csv.writer(file)
            rows.writerows([titles, [name, "N/A", HOSTILE, HOSTILE], [f"{name}.1", HOSTILE, 1, 2]])
            if rest:
                rows.writerow(rest)
    (folder / f"of no rank {HOSTILE.replace('/', '')}.csv").write_text("")
    fields = {"api": ["Distributed", HOSTILE], HOSTILE: 1}
    (folder / "merge.yaml").write_text(json.dumps(fields))
    (folder / "wrong.yaml").write_text(json.dumps(fields | {"compare_index": [HOSTILE]}))


def run(words: list[str], dumps: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [word.format(dumps=dumps, hostile=HOSTILE) for word in words]
    return subprocess.run(
        [sys.executable, "-m", "tensorprobe", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


COMPARE = ["compare", "--format=xlsx,csv,json", "--first-diff", "-o=results"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "{dumps}/ours"], 2),
        (["show", "{dumps}/ours", "Torch.cos.0.forward"], 2),
        (["show", "{dumps}/ours", "--json"], 2),
        (["show", "{dumps}/ours", "{hostile} is not there"], 2),
        (["show", "{dumps}/nowhere"], 2),
        (["show", "{dumps}/ours", "--{hostile}"], 2),
        ([*COMPARE, "{dumps}/ours", "{dumps}/theirs", "--highlight"], 2),
        ([*COMPARE, "{dumps}/ours without data", "{dumps}/theirs without data"], 0),
        (["blame", "{dumps}/ours", "{dumps}/theirs", "--repro=results"], 2),
        (["blame", "{dumps}/ours", "{dumps}/theirs", "--json"], 2),
        (["precheck", "{dumps}/ours", "-o=results", "--save-errors=errors"], 2),
        (["overflow", "{dumps}/ours", "-o=results"], 0),
        (["run", "{dumps}/{hostile}.py"], 2),
        (["run", "--config={dumps}/{hostile}.json", __file__], 2),
        (["merge", "{dumps}/results", "--config={dumps}/results/merge.yaml"], 2),
        (["merge", "{dumps}/results", "--config={dumps}/results/wrong.yaml"], 2),
        (["merge", "{dumps}/{hostile}", "--config={dumps}/results/merge.yaml"], 2),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_no_command_passes_a_text_on_as_it_is(
    words: list[str], code: int, dumps: Path, tmp_path: Path
) -> None:
    answer = run(words, dumps, tmp_path)
    assert answer.returncode == code, answer.stderr
    assert answer.stdout or answer.stderr
    assert not list(commands_in(answer.stdout))
    assert not list(commands_in(answer.stderr))
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.suffix not in (".pt", ".xlsx"):
            # A mark at the very beginning tells spreadsheets the encoding.
            text = file.read_text(encoding="utf-8").removeprefix("\ufeff")
            assert not list(commands_in(text)), file
        if file.suffix == ".xlsx":
            with zipfile.ZipFile(file) as archive:
                sheets = [name for name in archive.namelist() if "sheet" in name]
                for name in sheets:
                    assert not list(commands_in(archive.read(name).decode().replace("\r\n", "")))


def test_a_resumed_precheck_knows_the_names_that_it_wrote(dumps: Path, tmp_path: Path) -> None:
    words = ["precheck", "{dumps}/ours/step0", "-o=results"]
    # A file that holds another type than its record says is missing, and told.
    assert run(words, dumps, tmp_path).returncode == 2
    (result,) = (tmp_path / "results").glob("accuracy_checking_result_*.csv")
    whole = result.read_bytes()
    result.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    answer = run([*words, f"--resume={result}"], dumps, tmp_path)
    assert answer.returncode in (0, 2)
    assert result.read_bytes() == whole


def test_nothing_is_passed_on_to_a_terminal_either(dumps: Path, tmp_path: Path) -> None:
    """Colours and the progress bar are ours; everything else is not."""
    for words in (["show"], ["precheck", "-o", "results"], ["overflow", "-o", "results"]):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorprobe", *words, str(dumps / "ours")],
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(theirs)
        pieces = []
        try:
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        except OSError:
            # So it ends on Linux.
            pass
        assert process.wait() in (0, 2)
        shown = b"".join(pieces).decode()
        assert "\x1b[" in shown
        for text in ("\x1b[2J", "\x1b[31m\u202e", "\x9b", "\u202e", "\u2066", "\u200b", "\x85"):
            assert text not in shown
        assert not any(line.startswith("forged line") for line in shown.splitlines())


def test_the_worst_calls_and_origins_are_shown_and_not_obeyed() -> None:
    file = StringIO()
    console = QuietConsole(file=file, force_terminal=True, width=300)
    line = CallLine(HOSTILE, HOSTILE, "error", HOSTILE, f"torch said: {HOSTILE}")
    print_precheck(
        console,
        worst=[line, line._replace(part="another")],
        counts={"error": 2},
        older={"pass": 1, "fail": 1},
        stands_for=2,
        skipped=Counter({HOSTILE: 1}),
        paths=[Path(HOSTILE)],
        seconds=1.0,
    )
    origin = OriginLine(HOSTILE, HOSTILE, True, HOSTILE, HOSTILE)
    print_overflow_end(console, counts={"normal": 1}, origins=[origin] * 2, paths=[Path(HOSTILE)])
    shown = file.getvalue()
    assert "torch said:" in shown and "[red]" in shown
    assert "\x1b[2J" not in shown
    assert {found for found in commands_in(shown) if found != "U+001B"} == set()


def test_one_place_writes_to_the_terminal() -> None:
    """What goes round it is not cleaned."""
    ways = ("sys.stdout.write", "sys.stderr.write", "console.print(")
    home = {"lines.py", "console.py", "precheck_text.py", "progress_line.py", "ending.py"}
    for file in (REPOSITORY / "src/tensorprobe").rglob("*.py"):
        if file.name not in home:
            assert not [way for way in ways if way in file.read_text()], file


@pytest.mark.parametrize(
    "sign",
    ["\0", "\t", "\x1b", "\x7f", "\x85", "\x9b", "\xad", "\u061c", "\u200e", "\u2028"],
)
def test_a_sign_that_is_obeyed_is_replaced(sign: str) -> None:
    assert clean_text(f"a{sign}b") == "a�b"


@pytest.mark.parametrize(
    "text", ["中文/模型.py", "naïve é", "\xa0", "\U0001f600", "\ud800", "שלום"]
)
def test_letters_of_all_languages_stay(text: str) -> None:
    assert clean_text(text) == text


def test_a_message_of_several_lines_is_told_in_one() -> None:
    assert one_line("a\n  b\r\nc\x1b") == "a b c�"
