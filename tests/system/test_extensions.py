"""Compiled parts are turned off one by one, with what needs them, or all together."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorprobe
from tensorprobe.system.extensions import PARTS, SWITCH, is_turned_off, load_compiled


@pytest.mark.parametrize(
    ("switch", "off"),
    [
        ("", set()),
        ("0", set()),
        ("1", set(PARTS)),
        ("report._row_text", {"report._row_text"}),
        (" report._row_text , _crc32", {"report._row_text", "_crc32"}),
        ("capture._graph", {"capture._graph", "capture._gradients"}),
        ("capture._calls", {part for part in PARTS if part.startswith("capture.")}),
        ("nothing.of_ours", set()),
    ],
)
def test_the_switch_names_parts(
    switch: str, off: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    assert {part for part in PARTS if is_turned_off(part)} == off


def test_a_part_that_is_off_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "capture._frames")
    name = "tensorprobe.capture._calls"
    assert load_compiled(name, part="capture._frames") is None
    monkeypatch.setenv(SWITCH, "")
    assert load_compiled(name, "no_such_function") is None


def test_every_part_is_a_file_and_needs_one_that_is_there() -> None:
    package = Path(tensorprobe.__file__).parent
    for part, needed in PARTS.items():
        assert (package / f"{part.replace('.', '/')}.c").is_file(), part
        assert needed is None or needed in PARTS
