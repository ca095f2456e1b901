"""`tensorprobe show` of one tensor file, and of two."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tensorprobe.cli import main


def test_a_tensor_file_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.array([[1, -2.5], [0, 4]], np.float32))
    assert main(["show", str(file)]) == 0
    said = capsys.readouterr().out
    assert "float32 [2, 2]  max 4  min -2.5  mean 0.625  norm 4.82182538" in said
    assert "elements 4  zeros 1" in said and "first values: 1, -2.5, 0, 4" in said
    torch.save(torch.ones(3, dtype=torch.bfloat16), tmp_path / "b.pt")
    assert main(["show", str(tmp_path / "b.pt"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (
        row["values"][0]["dtype"] == "torch.bfloat16" and row["data"][0]["first_values"] == [1] * 3
    )


def test_two_tensor_files_are_held_against_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("a.pt", "b.npy")]
    mine = torch.arange(6.0).reshape(3, 2).t()
    torch.save(mine, files[0])
    theirs = mine.numpy().copy()
    theirs[1, 2] += 0.5
    np.save(files[1], theirs)
    assert main(["show", files[0], "--against", files[1]]) == 0
    said = capsys.readouterr().out
    assert "difference  1 of 6 elements differ\n" in said
    assert "max abs error       0.5\n" in said
    assert "element 5: 5.0 and 5.5\n" in said
    assert main(["show", files[0], "--against", files[1], "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    flat, other = mine.numpy().ravel().astype(float), theirs.ravel().astype(float)
    cosine = flat @ other / np.linalg.norm(flat) / np.linalg.norm(other)
    assert row["kind"] == "difference" and row["unequal"] == 1
    assert row["cosine"] == pytest.approx(cosine, rel=1e-12)
    assert row["one_thousandth"] == pytest.approx(5 / 6)


def test_what_has_no_number_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy")]
    np.save(files[0], np.float32([1]))
    np.save(files[1], np.float32([2]))
    assert main(["show", files[0], "--against", files[1]]) == 0
    assert "one element has no direction" in capsys.readouterr().out
    assert main(["show", files[0], "--against", files[1], "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["cosine"] == {"unavailable": "one element has no direction"}


def test_equal_elements_in_other_shapes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy")]
    np.save(files[0], np.arange(6.0).reshape(2, 3))
    np.save(files[1], np.arange(6.0).reshape(3, 2))
    assert main(["show", files[0], "--against", files[1]]) == 0
    line = "difference  0 of 6 elements differ; the shapes do: [2, 3] and [3, 2]\n"
    assert line in capsys.readouterr().out
    assert main(["show", files[0], "--against", files[1], "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["shapes"] == [[2, 3], [3, 2]]


def test_what_cannot_be_shown_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy", "c.pt", "huge.pt")]
    np.save(files[0], np.zeros((2, 2)))
    np.save(files[1], np.zeros(3))
    Path(files[2]).write_bytes(b"nonsense")
    torch.save(torch.zeros(1).expand(1 << 40), files[3])
    for words, complaint in (
        ([files[0], "--against", files[1]], "cannot be compared: their shapes are [2, 2] and [3]"),
        ([files[2]], "c.pt"),
        ([files[3]], "more than this machine has memory for"),
        ([str(tmp_path / "no.npy")], "no.npy"),
        ([files[0], "relu"], "there is nothing to choose by a pattern; leave that out, or give"),
        ([files[0], "--rank", "0", "--step", "0"], "nothing to choose by --step and --rank;"),
        ([str(tmp_path), "--against", files[0]], "--against is for two tensor files, .npy or .pt"),
    ):
        assert main(["show", *words]) == 2
        said = capsys.readouterr().err
        assert complaint in said and said.count("\n") == 1
