"""A journal is closed once, and its descriptor is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorprobe.store.journal import Journal


def test_closing_again_closes_nobody_elses_file(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "dump.json"))
    journal.append(b"{")
    journal.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    journal.close()
    with pytest.raises(OSError, match="closed"):
        journal.append(b"}")
    assert os.pwrite(other, b"mine", 0) == 4
    os.close(other)
    assert (tmp_path / "other").read_bytes() == b"mine"
    assert (tmp_path / "dump.json.part").read_bytes() == b"{"


def test_the_last_such_text_is_blanked_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few bytes at a time, so that the text lies across the ends of what is read at once.
    monkeypatch.setattr("tensorprobe.store.journal._SEARCHED_AT_ONCE", 5)
    journal = Journal(str(tmp_path / "a"))
    journal.append(b"one two one three")
    assert journal.blank(b" one") and not journal.blank(b"four")
    journal.append(b" four")
    journal.publish()
    journal.close()
    assert (tmp_path / "a").read_bytes() == b"one two     three four"
