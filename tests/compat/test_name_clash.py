"""The real msprobe beside tensorprobe-compat: whoever was installed last, it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

OURS = REPOSITORY / "compat/src"


def installed(folder: Path, distribution: str, version: str) -> Path:
    """Lay down what pip leaves of a package beside its files."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    return info


def run_python(*words: str, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, [*paths, REPOSITORY / "src"]))
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )


def doctors_word(paths: list[Path]) -> str:
    answer = run_python("-m", "tensorprobe", "doctor", "--json", paths=paths)
    assert answer.returncode == 0, answer.stderr
    findings = json.loads(answer.stdout)
    told = findings["msprobe"] if isinstance(findings, dict) else findings
    return json.dumps(told)


def test_ours_over_the_real_one_is_told_when_it_is_imported(tmp_path: Path) -> None:
    installed(tmp_path, "mindstudio-probe", "8.2.1")
    for words in (["-c", "import msprobe.pytorch"], ["-m", "msprobe", "graph"]):
        answer = run_python(*words, paths=[OURS, tmp_path])
        first, *rest = answer.stderr.splitlines()
        assert first == (
            "tensorprobe: mindstudio-probe 8.2.1 is installed beside tensorprobe-compat, and both "
            "own the name msprobe, which is now that of tensorprobe-compat: files of the one stand "
            "over files of the other; keep one: pip uninstall mindstudio-probe tensorprobe-compat, "
            "then install the one that is wanted"
        )
        assert len(rest) == ("graph" in words)
    assert "which is now that of tensorprobe-compat" in doctors_word([OURS, tmp_path])


def test_the_real_one_over_ours_is_told_by_the_doctor(tmp_path: Path) -> None:
    installed(tmp_path, "tensorprobe-compat", "0.1.0")
    installed(tmp_path, "mindstudio_probe", "26.2.0")
    (tmp_path / "msprobe").mkdir()
    (tmp_path / "msprobe/__init__.py").write_text("# of somebody else\n")
    told = doctors_word([tmp_path])
    assert "mindstudio-probe 26.2.0 is installed beside tensorprobe-compat" in told
    assert "which is now that of mindstudio-probe" in told
    assert "pip uninstall mindstudio-probe tensorprobe-compat" in told


@pytest.mark.parametrize(
    ("distribution", "owner"),
    [
        ("mindstudio-probe", ("mindstudio-probe 8.2.1", True)),
        ("tensorprobe-compat", ("tensorprobe-compat 8.2.1", True)),
        (None, ("absent: scripts and commands of the older tools need tensorprobe-compat", False)),
    ],
)
def test_where_there_is_one_or_none_there_is_no_clash(
    distribution: str | None, owner: tuple[str, bool], tmp_path: Path
) -> None:
    if distribution is not None:
        installed(tmp_path, distribution, "8.2.1")
    (tmp_path / "msprobe").mkdir()
    (tmp_path / "msprobe/__init__.py").write_text("")
    program = "from tensorprobe.older_tools import owner_of_msprobe as who; print(who())"
    # Without the packages that this Python has.
    answer = run_python("-S", "-c", program, paths=[tmp_path])
    assert answer.stdout == f"{owner!r}\n"


def test_ours_alone_says_nothing(tmp_path: Path) -> None:
    answer = run_python("-c", "import msprobe.pytorch", paths=[OURS, tmp_path])
    assert answer.returncode == 0 and not answer.stderr


@pytest.mark.parametrize("text", ["", "nonsense", "Version 3\n"])
def test_a_damaged_description_of_the_real_one_is_told_as_well(text: str, tmp_path: Path) -> None:
    (installed(tmp_path, "mindstudio-probe", "8.2.1") / "METADATA").write_text(text)
    answer = run_python("-c", "import msprobe.pytorch", paths=[OURS, tmp_path])
    assert answer.returncode == 0 and answer.stderr.count("\n") == 1
    assert "mindstudio-probe of unknown version is installed beside" in answer.stderr
