"""What is left of a step is done beside the run, and nobody reads a dump before that."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from tensorprobe.records import CallRecord, DumpInfo
from tensorprobe.store import DumpWriter, open_dump
from tensorprobe.store.unfinished import Finisher, wait_for_finishers


def test_work_is_done_in_order_and_its_thread_ends() -> None:
    finisher, done = Finisher(), []
    for number in range(20):
        finisher.do(lambda number=number: done.append(number))
    finisher.wait()
    wait_for_finishers()
    assert done == list(range(20))
    assert not [t for t in threading.enumerate() if t.name == "tensorprobe-finisher"]


def test_a_dump_that_is_being_finished_is_read_when_it_is_whole(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, DumpInfo(step=0))
    finisher = Finisher()

    def finish() -> None:
        time.sleep(0.2)
        writer.write(CallRecord("Torch.relu.0.forward", inputs=(None,)))
        writer.close()

    finisher.do(finish)
    dump = open_dump(tmp_path)
    assert [call.name for call in dump] == ["Torch.relu.0.forward"]
    assert (tmp_path / "dump.json").exists() and not dump.gaps


def test_more_work_than_memory_should_hold_is_waited_for() -> None:
    finisher = Finisher()
    release = threading.Event()
    finisher.do(lambda: release.wait(5))
    for _ in range(3):
        finisher.do(lambda: None)
    timer = threading.Timer(0.1, release.set)
    timer.start()
    finisher.do(lambda: None)
    # It came back only when the first was over.
    assert release.is_set()
    finisher.wait()


SCRIPT = """
import sys, time
from tensorprobe.records import CallRecord, DumpInfo
from tensorprobe.store import DumpWriter
from tensorprobe.store.unfinished import Finisher
writer = DumpWriter(sys.argv[1], DumpInfo(step=0))
def finish():
    time.sleep(0.3)
    writer.write(CallRecord("Torch.relu.0.forward", inputs=(None,)))
    writer.close()
Finisher().do(finish)
{end}
"""


def test_the_process_does_not_end_before_the_dump_is_finished(tmp_path: Path) -> None:
    for number, end in enumerate(("", "sys.exit(3)", "raise ValueError('the training failed')")):
        folder = tmp_path / str(number)
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(end=end), folder], capture_output=True, check=False
        )
        assert [call.name for call in open_dump(folder)] == ["Torch.relu.0.forward"]
        assert (folder / "dump.json").exists()
