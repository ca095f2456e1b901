"""`tensorprobe merge` on the command line: output, exit codes, interruption, a full disk."""

from __future__ import annotations

import os
import pty
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from result_tables import LINEAR, REDUCE, TIME, row, sheets_of, write_config, write_result

from conftest import DATA
from tensorprobe.cli import main
from tensorprobe.ranks import merge
from tensorprobe.report.merge_text import print_merged

DIST = DATA / "peer_dumps" / "compare-8.2.1" / "dist"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for rank in range(3):
        write_result(tmp_path / "results", rank, [row(REDUCE, rank), row(LINEAR, 9)])
    return tmp_path / "results"


def test_the_summary_says_what_came_out_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = DIST / "merge_statistics_subset" / "config.yaml"
    assert main(["merge", str(DIST / "mix_statistics"), "--config", str(config)]) == 0
    (file,) = Path("output").iterdir()
    said = capsys.readouterr()
    assert said.out == (
        "4 ranks (0-3) merged by statistics: 14 rows in 3 sheets, Max diff, L2norm diff, "
        f"MeanRelativeErr\n  {file}\n"
    )
    assert said.err == ""


def test_options_may_stand_before_the_folder(results: Path, tmp_path: Path) -> None:
    """This is how `msprobe -f pytorch merge_result` asks for it."""
    config = write_config(tmp_path)
    options = [f"--output={tmp_path / 'o'}", f"--config={config}"]
    assert main(["merge", *options, "--", str(results)]) == 0
    (file,) = (tmp_path / "o").iterdir()
    assert sheets_of(file)["Max diff"] == [
        ("NPU Name", "rank0", "rank1", "rank2"),
        (REDUCE, 0, 1, 2),
    ]


def test_what_could_not_be_merged_is_named_and_the_exit_code_tells(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, "api:\n- Distributed\n- Functional.linaer\n")
    (results / f"compare_result_rank1_{TIME}.xlsx").write_bytes(b"PK\x03\x04")
    assert main(["merge", str(results), "--config", str(config), "-o", str(tmp_path / "o")]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("2 ranks (0, 2) merged by statistics: 1 row in 9 sheets, Max diff")
    assert said.err == (
        "note: no row of any rank belongs to 'Functional.linaer'; did you mean "
        "'Functional.linear'?\n"
        f"missing: rank 1: compare_result_rank1_{TIME}.xlsx: is a damaged or cut workbook "
        "(File is not a zip file); copy it again, or compare again\n"
    )


def test_a_gap_in_the_ranks_alone_is_no_failure(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (results / f"compare_result_rank1_{TIME}.xlsx").unlink()
    config = write_config(tmp_path)
    assert main(["merge", str(results), "--config", str(config), "-o", str(tmp_path / "o")]) == 0
    assert capsys.readouterr().err == "note: there is no result of rank 1\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{results}", "--config", "none.yaml"], "none.yaml: the file cannot be read"),
        (["{results}", "--config", "{results}"], "this is a folder; give the file inside it"),
        (["nowhere", "--config", "{config}"], "nowhere: the folder cannot be read"),
        (["{config}", "--config", "{config}"], "merge.yaml: is no folder"),
        (["{md5}", "--config", "{config}"], "results of md5, such as compare_result_rank0_"),
        (["{results}", "--config", "{config}", "-o", "{config}"], "cannot be made: File exists"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(
    words: list[str],
    message: str,
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path)
    places = {"results": results, "config": config, "md5": DIST / "L1_md5"}
    assert main(["merge", *(word.format(**places) for word in words)]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("tensorprobe: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_without_a_configuration_the_usage_says_so(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["merge", str(results)])
    assert caught.value.code == 2
    assert "the following arguments are required: --config" in capsys.readouterr().err


def test_the_help_has_examples_that_work(
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit):
        main(["merge", "--help"])
    text = capsys.readouterr().out
    example = text.partition("merge.yaml:\n")[2].partition("\n\n")[0]
    monkeypatch.chdir(tmp_path)
    Path("merge.yaml").write_text("\n".join(line[2:] for line in example.splitlines()) + "\n")
    results.rename("result")
    commands = [line.split() for line in text.splitlines() if "tensorprobe merge result" in line]
    assert len(commands) == 2
    for command in commands:
        words = command[1 : command.index("merge.yaml") + 1]
        rest = command[len(words) + 1 :]
        words += rest if rest[:1] == ["-o"] else []
        assert main(words) == 0
    assert len(list(Path("output").iterdir())) == len(list(Path("merged").iterdir())) == 1


def test_a_second_merge_does_not_replace_the_first(results: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    # Into the folder of the results, too: the next one does not take it for a result.
    for _ in range(3):
        assert main(["merge", str(results), "--config", str(config), "-o", str(results)]) == 0
    assert len(list(results.glob("multi_ranks_compare_merge_*.xlsx"))) == 3


def merge_in_process(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorprobe", "merge", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )


def test_a_full_disk_leaves_nothing_and_is_one_line(results: Path, tmp_path: Path) -> None:
    config, output = write_config(tmp_path), tmp_path / "o"
    answer = merge_in_process(
        [str(results), "--config", str(config), "-o", str(output)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"tensorprobe: '{output}/multi_ranks_compare_merge_")
    assert "cannot be written: File too large; check the folder and its free space" in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert list(output.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_one_line(results: Path, tmp_path: Path) -> None:
    config, output = write_config(tmp_path), tmp_path / "o"
    output.mkdir(mode=0o500)
    answer = merge_in_process([str(results), "--config", str(config), "-o", str(output)])
    assert answer.returncode == 2
    assert "cannot be written: Permission denied" in answer.stderr


def test_a_terminal_sees_how_far_it_is(results: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    master, slave = pty.openpty()
    answer = subprocess.run(
        [sys.executable, "-m", "tensorprobe", "merge", str(results), "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=slave,
        cwd=tmp_path,
        check=False,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(slave)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert answer.returncode == 0
    assert "B/s" in shown
    assert b"3 ranks (0-2) merged" in answer.stdout


def test_progress_counts_the_bytes_of_all_files(results: Path, tmp_path: Path) -> None:
    write_result(results, 3, [row(REDUCE, 3)], ending="csv")
    told: list[tuple[str, int, int]] = []
    merge.merge_results(
        results, {"api": ["Distributed"]}, tmp_path, progress=lambda *now: told.append(now)
    )
    total = sum(path.stat().st_size for path in results.iterdir())
    assert {(unit, of) for unit, _, of in told} == {("bytes", total)}
    places = [done for _, done, _ in told]
    assert max(places) <= total
    assert max(places) > total - 2000


def test_of_many_lines_the_first_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_merged([], ["a note"] * 3, [f"rank {rank}: is gone" for rank in range(30)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 24
    assert lines[-1] == "missing: … and 10 more"
