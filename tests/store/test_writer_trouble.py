"""DumpWriter beside other writers, after a fork, and on a bad disk: what could be kept is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensorprobe.dtypes import DTYPES
from tensorprobe.records import (
    CallRecord,
    DumpInfo,
    Frame,
    TensorValue,
)
from tensorprobe.store import DumpWriter, TensorData, open_dump

TENSOR = TensorValue("torch.float32", (2, 3), 1.5, -2.0, 0.25, 4.0, True, "0badf00d")
NUMBERS = TensorData(DTYPES["torch.float32"], np.arange(6, dtype=np.float32).reshape(2, 3))


def test_two_writers_never_share_a_folder(tmp_path: Path) -> None:
    told: list[str] = []
    rank = tmp_path / "rank"
    with (
        DumpWriter(rank, DumpInfo()) as first,
        DumpWriter(rank, DumpInfo(), on_trouble=told.append) as second,
    ):
        first.write(CallRecord("Torch.a.0.forward"))
        second.write(CallRecord("Torch.b.0.forward"))
    assert second.folder == tmp_path / f"proc{os.getpid()}"
    assert told == [f"{rank} is being written already; this dump goes to {second.folder}"]
    assert [call.name for call in open_dump(first.folder)] == ["Torch.a.0.forward"]
    assert [call.name for call in open_dump(second.folder)] == ["Torch.b.0.forward"]


def test_a_folder_is_free_again_after_its_process_was_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from tensorprobe.store import DumpWriter\n"
        "from tensorprobe.records import DumpInfo\n"
        "writer = DumpWriter(sys.argv[1], DumpInfo())\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "rank")], check=False)
    with DumpWriter(tmp_path / "rank", DumpInfo()) as writer:
        assert writer.folder == tmp_path / "rank"


BEGIN_AND_DIE = (
    "import os, signal, sys\n"
    "from tensorprobe.store import DumpWriter\n"
    "from tensorprobe.records import CallRecord, DumpInfo, Frame\n"
    "writer = DumpWriter(sys.argv[1], DumpInfo(level='mix'))\n"
    "if len(sys.argv) > 2:\n"
    "    stack = (Frame('old.py', 1, 'forward', 'a(x)'),)\n"
    "    writer.write(CallRecord('Torch.a.0.forward'), stack=stack, parent='Module.old')\n"
    "os.kill(os.getpid(), signal.SIGKILL)\n"
)


def test_a_run_that_is_killed_before_its_first_record_leaves_an_empty_dump(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BEGIN_AND_DIE, str(tmp_path / "rank")], check=False)
    (part,) = open_dump(tmp_path / "rank").parts
    assert list(part) == [] and not part.info.complete
    assert part.stack("Torch.a.0.forward") == () and part.parent("Torch.a.0.forward") is None


@pytest.mark.parametrize("text", ["", "    ", '{\n "task": "stat'])
def test_a_run_that_is_killed_before_its_first_line_is_whole_is_known_as_ours(
    tmp_path: Path, text: str
) -> None:
    folder = tmp_path / "step0" / "rank"
    folder.mkdir(parents=True)
    (folder / "dump.json.part").write_text(text)
    (part,) = open_dump(tmp_path).parts
    assert part.info.tool == "tensorprobe" and not part.info.complete and not list(part.names)


def test_what_a_killed_run_left_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    rank = tmp_path / "rank"
    subprocess.run([sys.executable, "-c", BEGIN_AND_DIE, str(rank), "writes"], check=False)
    assert open_dump(rank).parts[0].parent("Torch.a.0.forward") == "Module.old"
    subprocess.run([sys.executable, "-c", BEGIN_AND_DIE, str(rank)], check=False)
    (part,) = open_dump(rank).parts
    assert list(part) == [] and part.parent("Torch.a.0.forward") is None
    assert part.stack("Torch.a.0.forward") == ()


FORK = """
import os, sys, threading
from tensorprobe.store import DumpWriter
from tensorprobe.records import CallRecord, DumpInfo
stop = threading.Event()
with DumpWriter(sys.argv[1], DumpInfo()) as writer:
    def work():
        number = 0
        while not stop.is_set():
            writer.write(CallRecord(f"Torch.a.{number}.forward"))
            number += 1
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            assert not writer.write(CallRecord("Torch.child.0.forward"))
            assert writer.save_tensor("Torch.child.0.forward.input.0", None) is None
            writer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
"""


def test_a_forked_child_neither_writes_into_its_parents_dump_nor_waits_for_it(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], check=True, timeout=60)
    dump = open_dump(tmp_path)
    assert dump.gaps == () and len(dump) > 0
    assert not any("child" in call.name for call in dump)


def test_a_forked_child_does_not_keep_its_killed_parents_folder(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time\n"
        "from tensorprobe.store import DumpWriter\n"
        "from tensorprobe.records import DumpInfo\n"
        "writer = DumpWriter(sys.argv[1], DumpInfo())\n"
        "if os.fork() == 0:\n"
        "    time.sleep(10)\n"
        "    os._exit(0)\n"
        "time.sleep(0.2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "rank")], check=False)
    with DumpWriter(tmp_path / "rank", DumpInfo()) as writer:
        assert writer.folder == tmp_path / "rank"


# --- trouble with the disk ---------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    told: list[str] = []
    with DumpWriter(tmp_path / "file" / "rank", DumpInfo(), on_trouble=told.append) as writer:
        for number in range(3):
            assert not writer.write(CallRecord(f"Torch.a.{number}.forward"))
        assert writer.save_tensor("Torch.a.0.forward.input.0", NUMBERS) is None
        assert writer.link_tensor("Torch.a.0.forward.input.1", "x.pt") is None
    assert len(told) == 1 and "the dump could not be written" in told[0]


def test_trouble_is_logged_where_nobody_else_wants_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    DumpWriter(tmp_path / "file" / "rank", DumpInfo()).close()
    assert [record.name for record in caplog.records] == ["tensorprobe"]


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no file system that refuses files")
def test_a_read_only_folder_is_told_once() -> None:
    told: list[str] = []
    with DumpWriter("/sys/kernel/rank", DumpInfo(), on_trouble=told.append) as writer:
        assert not writer.write(CallRecord("Torch.a.0.forward"))
    assert len(told) == 1 and told[0].startswith(
        "/sys/kernel/rank: the dump could not be written: "
    )


FULL_DISK = """
import resource, sys
import numpy as np
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import CallRecord, DumpInfo, TensorValue
from tensorprobe.store import DumpWriter, TensorData
told = []
limit = 8_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
big = TensorData(DTYPES["torch.float32"], np.zeros(limit, np.float32))
small = TensorData(DTYPES["torch.float32"], np.zeros(4, np.float32))
info = DumpInfo(task="tensor", level="mix")
with DumpWriter(sys.argv[1], info, on_trouble=told.append) as writer:
    assert writer.save_tensor("Torch.a.0.forward.input.0", small)
    assert writer.save_tensor("Torch.a.0.forward.input.1", big) is None
    kept = 0
    for number in range(400):
        kept += writer.write(CallRecord(f"Torch.a.{number}.forward"), parent="Module.m.M.forward.0")
    assert 0 < kept < 400 and writer.lost == 1 + 400 - kept
print(kept, len(told))
"""


def test_a_disk_that_fills_up_costs_only_what_did_not_fit(tmp_path: Path) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    answer = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    kept, told = map(int, answer.stdout.split())
    assert told == 1
    dump = open_dump(tmp_path)
    assert [call.name for call in dump] == [f"Torch.a.{n}.forward" for n in range(kept)]
    # The end did not fit either, so the journal is what is left; it says what it lacks, and why.
    problems = [gap.problem for gap in dump.gaps]
    assert problems[0] == f"the dump was not closed; {kept} calls are there"
    assert problems[1].startswith("the data of Torch.a.0.forward.input.1 could not be written: ")
    assert f"Torch.a.{kept}.forward could not be written: File too large" in problems
    assert problems[-1].startswith("and ") and problems[-1].endswith(" more")
    assert not list((tmp_path / "dump_tensor_data").glob(".*"))


def test_space_that_comes_back_is_used_and_the_dump_says_what_it_lacks(tmp_path: Path) -> None:
    only_soft = FULL_DISK.replace("(limit, limit)", "(limit, -1)")
    program = only_soft.replace(
        "    assert 0 <", "    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n    assert 0 <"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    dump = open_dump(tmp_path)
    assert dump.parts[0].info.complete
    problems = [gap.problem for gap in dump.gaps]
    assert any("the data of Torch.a.0.forward.input.1 could not be written" in p for p in problems)
    assert any(p.startswith("and ") and p.endswith(" more") for p in problems)


def test_a_folder_that_vanishes_comes_back_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank"
    with DumpWriter(folder, DumpInfo(task="tensor", level="mix")) as writer:
        writer.save_tensor("Torch.a.0.forward.input.0", NUMBERS)
        value = TensorValue("torch.float32", (2, 3), data_name="Torch.a.0.forward.input.0.pt")
        writer.write(CallRecord("Torch.a.0.forward", (value,)))
        shutil.rmtree(tmp_path / "step0")
        assert writer.save_tensor("Torch.b.0.forward.input.0", NUMBERS)
        writer.write(CallRecord("Torch.b.0.forward"))
    dump = open_dump(tmp_path)
    assert [call.name for call in dump] == ["Torch.a.0.forward", "Torch.b.0.forward"]
    assert ["Torch.a.0.forward.input.0.pt is missing" in str(gap) for gap in dump.gaps] == [True]


def test_a_folder_that_vanishes_before_the_first_record_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank"
    stack = (Frame("train.py", 3, "forward", "a(x)"),)
    with DumpWriter(folder, DumpInfo(level="mix")) as writer:
        shutil.rmtree(tmp_path / "step0")
        assert writer.write(CallRecord("Torch.a.0.forward"), stack=stack, parent="Module.m")
    (part,) = open_dump(tmp_path).parts
    assert part.info.complete and part.gaps == ()
    assert part.stack("Torch.a.0.forward") == stack
    assert part.parent("Torch.a.0.forward") == "Module.m"


def test_on_a_full_disk_calls_written_together_are_kept_as_far_as_they_fit(tmp_path: Path) -> None:
    program = FULL_DISK.replace(
        """    kept = 0
    for number in range(400):
        kept += writer.write(CallRecord(f"Torch.a.{number}.forward"), parent="Module.m.M.forward.0")
    assert 0 < kept < 400 and writer.lost == 1 + 400 - kept
print(kept, len(told))
""",
        """    for first in range(0, 400, 50):
        names = [f"Torch.a.{number}.forward" for number in range(first, first + 50)]
        writer.write_all((CallRecord(name), (), None) for name in names)
print(writer.lost, len(told))
""",
    ).replace('level="mix"', 'level="L1"')
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    lost, told = map(int, answer.stdout.split())
    kept = [call.name for call in open_dump(tmp_path)]
    assert kept == [f"Torch.a.{n}.forward" for n in range(len(kept))]
    # The last piece fits in part; one more is lost for the tensor, and one for the end of the file.
    assert len(kept) % 50 and lost == 400 - len(kept) + 2
    assert told == 1


def test_data_that_are_lost_after_their_record_lose_their_name_in_it(tmp_path: Path) -> None:
    told: list[str] = []
    with DumpWriter(tmp_path, DumpInfo(task="tensor"), on_trouble=told.append) as writer:
        files, names = writer.tensor_files, [f"Torch.a.0.forward.input.{n}" for n in range(2)]
        assert files is not None
        dtype = DTYPES["torch.float32"]
        lost, kept = (files.promise(name, dtype, (1,)) for name in names)
        assert lost is not None and kept is not None
        values = tuple(TensorValue(dtype.name, (1,), data_name=f.data_name) for f in (lost, kept))
        assert writer.write(CallRecord("Torch.a.0.forward", inputs=values))
        kept.write(bytes(4))
        lost.fail(OSError(28, "No space left on device"))
    (call,) = open_dump(tmp_path)
    assert call.inputs is not None
    found = [value.data_name for value in call.inputs if isinstance(value, TensorValue)]
    assert found == [None, f"{names[1]}.pt"] and len(told) == 1
