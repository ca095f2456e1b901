"""Two runs that write into one dump path at the same time keep to folders of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprobe.records import DumpInfo
from tensorprobe.store import open_dump
from tensorprobe.store.run_folders import RunFolders
from tensorprobe.store.writer import DumpWriter

pytestmark = pytest.mark.same_without_c


# Steps of both alternate, one word on the input each: every step of one is over when the other's
# begins.
RUN = """
import sys
from tensorprobe import PrecisionDebugger
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="debug")
print("ready", flush=True)
for line in sys.stdin:
    debugger.save(sys.argv[2], "who", save_backward=False)
    debugger.step()
    print("done", flush=True)
debugger.close()
"""


def begin(folder: Path, who: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), who],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def step(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("step\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"


def writers(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("debug.json")):
        value = json.loads(path.read_text())["data"]["who.0.debug"]["value"]
        found.setdefault(path.parent.name, []).append(value)
    return found


@pytest.mark.parametrize("is_late", [False, True])
def test_steps_of_two_runs_are_never_mixed(tmp_path: Path, is_late: bool) -> None:
    first, second = begin(tmp_path, "first"), begin(tmp_path, "second")
    if is_late:
        # The second begins where the first has long been.
        step(first)
        step(first)
    for _ in range(3):
        step(first)
        step(second)
    told = [child.communicate()[1] for child in (first, second)]
    ahead = 2 if is_late else 0
    assert writers(tmp_path) == {
        "rank": ["first"] * (3 + ahead),
        f"proc{second.pid}": ["second"] * 3,
    }
    assert told[0] == "" and f"this dump goes to {tmp_path}/step0/proc{second.pid}" in told[1]
    infos = [part.info for part in open_dump(tmp_path).parts]
    assert {info.process for info in infos} == {None, second.pid}


def test_a_run_that_comes_after_one_is_over_takes_its_place(tmp_path: Path) -> None:
    for who in ("first", "second"):
        child = begin(tmp_path, who)
        step(child)
        child.communicate()
    assert writers(tmp_path) == {"rank": ["second"]}


def test_a_run_that_comes_after_one_was_killed_takes_its_place(tmp_path: Path) -> None:
    child = begin(tmp_path, "first")
    step(child)
    child.kill()
    child.communicate()
    child = begin(tmp_path, "second")
    step(child)
    child.communicate()
    assert writers(tmp_path) == {"rank": ["second"]}


def test_ranks_of_one_run_do_not_stand_in_each_others_way(tmp_path: Path) -> None:
    runs = [RunFolders(), RunFolders()]
    for number in range(3):
        for rank, run in enumerate(runs):
            folder = tmp_path / f"step{number}" / f"rank{rank}"
            with DumpWriter(folder, DumpInfo(level="L1"), run_folders=run) as writer:
                assert writer.folder == folder
    for run in runs:
        run.release()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_holds_nothing_for_its_parent(tmp_path: Path) -> None:
    run = RunFolders()
    DumpWriter(tmp_path / "step0/rank", DumpInfo(level="L1"), run_folders=run).close()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read_end, 1)
        os._exit(0)
    try:
        run.release()
        after = RunFolders()
        writer = DumpWriter(tmp_path / "step0/rank", DumpInfo(level="L1"), run_folders=after)
        assert writer.folder.name == "rank"
        writer.close()
        after.release()
    finally:
        os.write(write_end, b"x")
        os.waitpid(child, 0)
