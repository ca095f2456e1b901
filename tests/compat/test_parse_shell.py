"""`msprobe -f pytorch parse`: lines at a prompt, or from a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from conftest import DATA
from msprobe.msprobe import main

PKL = next((DATA / "peer_dumps/ptdbg_ascend/2024-03/all").rglob("api_stack_dump.pkl"))


def parse(lines: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(["-f", "pytorch", "parse"])


def test_tensors_and_calls_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a b.npy", np.float32([1, 2]))
    np.save("c.npy", np.float32([1, 2.5]))
    lines = (
        "pt -n 'a b.npy'\n\n"
        "cn -m 'a b.npy' -g c.npy -p 20 -s -al 0.001 -rl 0.001\n"
        f"pk -f {PKL} -n Functional_relu_0\n"
        "pt -h\n"
        "quit\n"
        "pt -n not-read.npy\n"
    )
    assert parse(lines, monkeypatch) == 0
    said = capsys.readouterr()
    assert said.out.startswith("pt: one tensor; cn: two; ") and "Parse >>> " in said.out
    assert "first values: 1, 2\n" in said.out
    assert "difference  1 of 2 elements differ" in said.out
    assert "Functional.relu.0.backward" in said.out and "Functional.conv2d" not in said.out
    assert "a .npy or .pt file" in said.out and not said.err


def test_a_call_of_a_module_is_found_by_the_name_that_the_pkl_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pkl = tmp_path / "dump.pkl"
    value = '0, [], "torch.float32", [1], [1.0, 1.0, 1.0, 1.0]]\n'
    pkl.write_text(
        f'["conv_Conv2d_0_forward_input.0", {value}["fc_Linear_0_forward_input.0", {value}'
    )
    assert parse(f"pk -f {pkl} -n conv_Conv2d_0_forward\n", monkeypatch) == 0
    said = capsys.readouterr().out
    assert "Module.conv.Conv2d.forward.0" in said and "Linear" not in said


def test_two_dumps_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(f"vc -m {PKL} -g {PKL} -out tables\n", monkeypatch) == 0
    assert len(list((tmp_path / "tables").glob("compare_result*.xlsx"))) == 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("dc -n x", "dc: files of kernels are converted by the msaccucmp.py that comes with CANN"),
        ("cad -m x", "cad: files of kernels are converted by the msaccucmp.py that comes"),
        ("zz x", "'zz' is no command; known are pt, cn, pk, vc and quit"),
        ("pt", "pt: the following arguments are required: -n/--name"),
        ("pt -n 'x", "No closing quotation"),
        ("pt -n nowhere.npy", "nowhere.npy: does not exist"),
        (f"pk -f {PKL} -n Zz", "fits 'Zz*'"),
    ],
)
def test_a_wrong_line_is_told_and_the_next_is_read(
    line: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.save(tmp_path / "x.npy", np.float32([3]))
    assert parse(f"{line}\npt -n {tmp_path / 'x.npy'}\n", monkeypatch) == 2
    said = capsys.readouterr()
    assert complaint in said.err and said.err.count("\n") == 1
    assert "first values: 3\n" in said.out


def test_ctrl_c_at_the_prompt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Interrupting())
    assert main(["parse"]) == 130
    assert capsys.readouterr().err == "tensorprobe: interrupted\n"


def test_the_newer_parse_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parse", "-d", "x", "-t", "pt", "-o", "y"]) == 2
    said = capsys.readouterr().err
    assert "-d converts files of kernels, which is not here" in said and said.count("\n") == 1
