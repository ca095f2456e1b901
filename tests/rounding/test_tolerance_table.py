"""The documentation has every tolerance, and the code reads each when it is used."""

from __future__ import annotations

import ast

import pytest
import torch

from conftest import REPOSITORY
from tensorprobe.rounding import tolerances
from tensorprobe.rounding.tensor_limit import limit_of_result
from tensorprobe.rounding.tolerance_table import all_tolerances, as_markdown

SOURCE = REPOSITORY / "src" / "tensorprobe"


def test_the_documentation_has_the_table_of_the_code() -> None:
    text = (REPOSITORY / "docs" / "tolerances.md").read_text()
    assert as_markdown() in text, "run: make tolerances"


def test_every_constant_says_why_it_is_so() -> None:
    names = {name for name in vars(tolerances) if name.isupper()}
    assert {tolerance.name for tolerance in all_tolerances()} == names
    assert all(len(tolerance.why) > 20 for tolerance in all_tolerances())


def test_every_constant_is_read_and_read_when_it_is_used() -> None:
    """A copy under another name, or a default argument, would not see that one was changed."""
    read = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tolerances":
                read.add(node.attr)
            if isinstance(node, ast.ImportFrom):
                assert node.module != "tensorprobe.rounding.tolerances", path
    assert read == {tolerance.name for tolerance in all_tolerances()}


def test_a_changed_constant_changes_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = limit_of_result(torch.bfloat16, 1, 1.0).total
    monkeypatch.setattr(tolerances, "ROUNDINGS_BFLOAT16", 2 * tolerances.ROUNDINGS_BFLOAT16)
    after = limit_of_result(torch.bfloat16, 1, 1.0).total
    assert after > 1.9 * before
