"""The table of what the seed documents show and ask: every block of code, every question.

    tests/data/seeds/blocks.yaml      each block as it stands, what it does here, which test runs it
    tests/data/seeds/questions.yaml   each question and promise, and what shows the answer
        └► docs/seeds.md              python tests/seeds/seed_table.py --write

The tests take the text of a block from here, so nothing that is shown is not run.
"""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "DOCUMENTS",
    "PAGE",
    "Block",
    "Change",
    "Question",
    "block",
    "blocks",
    "fenced_blocks",
    "questions",
    "questions_asked",
    "render_page",
]

_TESTS = Path(__file__).parents[1]
_DATA = _TESTS / "data" / "seeds"
PAGE = _TESTS.parent / "docs" / "seeds.md"

DOCUMENTS = {
    "000": "msprobe: questions and answers",
    "001": "api_accuracy_checker: the pre-check of an Ascend model",
    "002": "ptdbg_ascend: questions and answers",
    "003": "msprobe: the online comparison",
    "004": "msprobe: the offline comparison",
}

_FENCE = re.compile(r"(?P<indent>[ \t]*)```(?P<kind>\w*)[ \t]*")


@dataclass(frozen=True, slots=True)
class Change:
    """A piece of a block's text that cannot be here as it stands.

    Attributes:
        text: what the seed has.
        becomes: what stands there when it is run.
        why: the reason.
    """

    text: str
    becomes: str
    why: str


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code of a seed.

    Attributes:
        key: document and number, such as `004-3`.
        kind: what the seed calls it: shell, python, json; blank if it does not say.
        does: what it does here.
        runs: what it runs with: the CPU, or a device that stands in for an NPU.
        test: the test that runs it.
        changed: what is replaced before it is run.
        text: the block as it stands between its fences.
    """

    key: str
    kind: str
    does: str
    runs: str
    test: str
    changed: tuple[Change, ...]
    text: str

    @property
    def code(self) -> str:
        """The block as it is run: without the indentation of its list, and changed."""
        code = textwrap.dedent(self.text)
        for change in self.changed:
            assert change.text in code, (self.key, change.text)
            code = code.replace(change.text, change.becomes)
        return code

    @property
    def first_line(self) -> str:
        """Its first line that is not blank."""
        return next(line.strip() for line in self.text.splitlines() if line.strip())


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a seed, or one promise that it makes.

    Attributes:
        document: which seed.
        heading: the line as it stands there; of a promise, a piece of it.
        question: the same in English.
        occurs: whether it can still occur.
        tests: which tests show that.
        what_to_do: if it occurs, or in place of what the seed advises.
    """

    document: str
    heading: str
    question: str
    occurs: str
    tests: tuple[str, ...]
    what_to_do: str

    @property
    def is_asked(self) -> bool:
        """Whether it is a question; 003 and 004 have none, and number some of their rules."""
        is_titled = self.heading.startswith("### ") or re.match(r"\d+\. ", self.heading) is not None
        return is_titled and self.document in ("000", "001", "002")


@functools.cache
def blocks() -> dict[str, Block]:
    """Return every block by its key."""
    return {
        row["key"]: Block(
            row["key"],
            row["kind"],
            row["does"],
            row["runs"],
            row["test"],
            tuple(Change(**change) for change in row.get("changed", ())),
            row["text"],
        )
        for row in _read("blocks.yaml")
    }


def block(key: str) -> Block:
    """Return one block."""
    return blocks()[key]


@functools.cache
def questions() -> tuple[Question, ...]:
    """Return every question and promise."""
    return tuple(
        Question(
            row["document"],
            row["heading"],
            row["question"],
            row["occurs"],
            tuple(row["tests"]),
            row["do"],
        )
        for row in _read("questions.yaml")
    )


def _read(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load((_DATA / name).read_text(encoding="utf-8"))
    return rows


# --- the documents themselves --------------------------------------------------------------------


def fenced_blocks(document: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each block of a document, in order.

    >>> list(fenced_blocks("a\\n  ```shell\\n  ls\\n  ```\\nb\\n"))
    [('shell', '  ls\\n')]
    """
    lines = iter(document.splitlines(keepends=True))
    for line in lines:
        opening = _FENCE.fullmatch(line.rstrip("\n"))
        if opening is None:
            continue
        text = []
        for inside in lines:
            if inside.strip() == "```":
                break
            text.append(inside)
        yield opening["kind"], "".join(text)


def questions_asked(key: str, document: str) -> list[str]:
    """Return the headings of all questions and answers of a document; 003 and 004 have none.

    >>> questions_asked("001", "1. first\\n# FAQ\\n1. why?\\n")
    ['1. why?']
    """
    found = []
    numbered = key == "000"
    for line in document.splitlines():
        if line.startswith("# "):
            # The tool's own name, and what stands above its numbered questions.
            numbered = line.startswith("# FAQ") or (key == "000" and "预检" in line)
        is_numbered = numbered and re.match(r"\d+\. ", line) is not None
        is_heading = key in ("000", "002") and line.startswith("### ")
        if (is_numbered or is_heading) and key in ("000", "001", "002"):
            found.append(line)
    return found


# --- the page ------------------------------------------------------------------------------------

_HEAD = """\
# The seed documents

tensorprobe began with five documents of older tools, in Chinese. What they show works here as it
is written, and what they warn of is answered. This page is made from the table that the tests run
(`tests/data/seeds`; `python tests/seeds/seed_table.py --write`): each block of code is taken from
there and run, by a shell or by Python, on small models.

"Runs with" says what stands in for an NPU. *CPU*: the same code without one. *stand-in npu*: torch
is told of a device `npu` (`torch.utils.rename_privateuse1_backend`), which has a number and no
memory. *text*: a block that nothing runs, such as a list of files or of names; what is here is
compared with it. A block runs as it stands, but for what "changed" names.
"""

_TABLES = (
    (
        False,
        "Promises and limits",
        "what it says | does it hold here? | what shows it | what to know",
    ),
    (True, "Questions", "question | can it still occur? | what shows it | what to do"),
)


def render_page() -> str:
    """Return docs/seeds.md."""
    pieces = [_HEAD]
    for document, title in DOCUMENTS.items():
        pieces.append(f"\n## {document}: {title}\n")
        pieces.append("\n| block | what it does here | runs with | test |\n|---|---|---|---|\n")
        for row in blocks().values():
            if row.key.startswith(document):
                pieces.append(_block_row(row))
        for is_asked, title, titles in _TABLES:
            rows = [row for row in questions() if row.document == document]
            if rows := [row for row in rows if row.is_asked is is_asked]:
                pieces.append(f"\n### {title} of {document}\n\n| {titles} |\n|---|---|---|---|\n")
                pieces.extend(_question_row(row) for row in rows)
    return "".join(pieces)


def _block_row(row: Block) -> str:
    changes = "".join(
        f"<br>changed: {_code(change.text)} → {_code(change.becomes)}, {change.why}"
        for change in row.changed
    )
    kind = f" ({row.kind})" if row.kind else ""
    shown = f"{row.key}{kind}: {_code(row.first_line)}"
    return f"| {shown} | {row.does}{changes} | {row.runs} | {_test(row.test)} |\n"


def _question_row(row: Question) -> str:
    tests = "<br>".join(_test(test) for test in row.tests)
    number = re.match(r"(?:### )?(\d+\.) ", row.heading)
    start = f"{number[1]} " if number and row.is_asked else ""
    return f"| {start}{row.question} | {row.occurs} | {tests} | {row.what_to_do} |\n"


def _test(test: str) -> str:
    return f"`{test}`"


def _code(text: str) -> str:
    """Return text as code that may stand in a cell of a table."""
    shown = " ⏎ ".join(line.rstrip() for line in text.strip("\n").splitlines()) or " "
    shown = shown.replace("|", "\\|")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is what the table makes."""
    if arguments == ["--write"]:
        PAGE.write_text(render_page(), encoding="utf-8")
        return 0
    if arguments:
        sys.stderr.write("usage: seed_table.py [--write]\n")
        return 2
    is_fresh = PAGE.read_text(encoding="utf-8") == render_page()
    sys.stderr.write(f"{PAGE} is {'fresh' if is_fresh else 'stale; write it with --write'}\n")
    return 0 if is_fresh else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
