"""`tensorprobe compare` says first who is at fault, where that is quick."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe import conclude, demo
from tensorprobe.cli import main


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    for name in ("candidate", "reference"):
        demo.capture_step(folder / name, has_fault=name == "candidate")
    return str(folder / "candidate"), str(folder / "reference")


def compare(pair: tuple[str, str], tmp_path: Path, *options: str) -> int:
    return main(["compare", *pair, "-o", str(tmp_path / "o"), *options])


def test_a_small_comparison_begins_with_its_conclusion(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(pair, tmp_path) == 0
    text = capsys.readouterr().out
    assert text.startswith("culprit     Functional.layer_norm.0.forward.output.0\n")
    assert "values compared by real data" in text


@pytest.mark.parametrize("option", ["--no-blame", "--no-advice"])
def test_nobody_is_named_who_was_not_asked_for(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert compare(pair, tmp_path, option) == 0
    assert "culprit" not in capsys.readouterr().out


def test_large_dumps_get_the_command_instead(
    pair: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conclude, "_SMALL", 1000)
    assert compare(pair, tmp_path) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"which operation is at fault: tensorprobe blame {pair[0]} {pair[1]}\n")
    assert compare(pair, tmp_path, "--blame") == 0
    assert capsys.readouterr().out.startswith("culprit ")


def test_what_cannot_be_opened_is_told_once(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare((pair[0], str(tmp_path / "nothing")), tmp_path) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1
