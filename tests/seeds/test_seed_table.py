"""The table of the seeds is whole: each block and question has a row, each row a test."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import seed_table
from seed_table import DOCUMENTS, block, blocks, fenced_blocks, questions, questions_asked

from conftest import REPOSITORY, SHARED

SEEDS = SHARED / "seeds"
needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="the seed documents are not here")


def document(key: str) -> str:
    (file,) = SEEDS.glob(f"{key}_*.txt")
    return file.read_bytes().decode()


@functools.cache
def functions(file: Path) -> dict[str, str]:
    """Return the source of every test in a file, with its decorators."""
    text = file.read_text(encoding="utf-8")

    def source(node: ast.AST) -> Iterator[str]:
        assert isinstance(node, ast.FunctionDef)
        yield from (ast.get_source_segment(text, one) or "" for one in node.decorator_list)
        yield ast.get_source_segment(text, node) or ""

    return {
        node.name: "\n".join(source(node))
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


@functools.cache
def constants(file: Path) -> dict[str, str]:
    """Return the names that a file gives to texts."""
    found: dict[str, str] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            targets = node.targets[0]
            names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                    found[name.id] = str(value.value)
    return found


@pytest.mark.parametrize("key", blocks())
def test_the_test_of_a_block_takes_the_text_from_the_table(key: str) -> None:
    """By its key, itself or through what it calls: a fixture, or a function of its file."""
    name, _, function = block(key).test.partition("::")
    file = REPOSITORY / name
    sources = functions(file)
    seen, waiting = set(), [function]
    names = [constant for constant, value in constants(file).items() if value == key]
    while waiting:
        one = waiting.pop()
        seen.add(one)
        is_named = re.search(rf"[\"']{key}[\"']", sources[one])
        if is_named or any(constant in sources[one] for constant in names):
            return
        waiting += [other for other in sources if other not in seen and other in sources[one]]
    raise AssertionError(f"{block(key).test} does not use {key}")


@pytest.mark.parametrize("test", sorted({test for row in questions() for test in row.tests}))
def test_what_answers_a_question_is_there(test: str) -> None:
    name, _, function = test.partition("::")
    file = REPOSITORY / name
    assert file.is_file()
    assert not function or function in functions(file)


def test_what_is_changed_in_a_block_is_there_and_has_a_reason() -> None:
    for row in blocks().values():
        assert row.code.strip()
        assert all(change.why and change.text != change.becomes for change in row.changed)


def test_the_page_is_what_the_table_makes() -> None:
    stale = "docs/seeds.md is stale: python tests/seeds/seed_table.py --write"
    assert seed_table.PAGE.read_text(encoding="utf-8") == seed_table.render_page(), stale


def test_a_row_of_the_page_is_one_line_of_as_many_cells() -> None:
    rows = [line for line in seed_table.render_page().splitlines() if line.startswith("|")]
    assert len(rows) > len(blocks()) + len(questions())
    for row in rows:
        assert row.replace("\\|", "").count("|") == 5, row


@needs_seeds
@pytest.mark.parametrize("key", DOCUMENTS)
def test_every_block_of_the_document_has_its_row_to_the_letter(key: str) -> None:
    shown = list(fenced_blocks(document(key)))
    rows = [row for row in blocks().values() if row.key.startswith(f"{key}-")]
    assert [row.key for row in rows] == [f"{key}-{n}" for n in range(1, len(shown) + 1)]
    for row, (kind, text) in zip(rows, shown, strict=True):
        assert (row.kind, row.text) == (kind, text), row.key


@needs_seeds
@pytest.mark.parametrize("key", DOCUMENTS)
def test_every_question_of_the_document_has_its_row(key: str) -> None:
    text = document(key)
    rows = [row for row in questions() if row.document == key]
    assert [row.heading for row in rows if row.is_asked] == questions_asked(key, text)
    assert rows and all(row.heading in text for row in rows)
