"""A run that is killed at any moment leaves a dump that opens and lacks at most one record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprobe.records import TensorValue
from tensorprobe.store import open_dump

RUNS = 200

# Without torch a child starts by a fork in no time, so 200 runs take seconds.
KILLER = """
import json, os, random, signal, struct, sys, time
from pathlib import Path
import numpy as np
from tensorprobe.dtypes import DTYPES
from tensorprobe.records import CallRecord, DumpInfo, Frame, TensorValue
from tensorprobe.store import DumpWriter, TensorData
assert "torch" not in sys.modules

def write_one(writer, name, number):
    data = TensorData(DTYPES["torch.float32"], np.full((number % 50,), number, np.float32))
    saved = writer.save_tensor(f"{name}.input.0", data)
    linked = writer.link_tensor(f"{name}.input.1", saved)
    files = (saved, linked)
    values = tuple(TensorValue("torch.float32", data.shape, data_name=file) for file in files)
    stack = (Frame("train.py", number % 7, "forward", "a(x)"),)
    assert writer.write(CallRecord(name, values), stack=stack, parent="Module.m.M.forward.0")

def write_for_ever(folder, acknowledge, chance):
    # Dump after dump into the same folder, each replacing the one before.
    for generation in range(1, 1000):
        writer = DumpWriter(folder, DumpInfo(task="tensor", level="mix"))
        for number in range(chance.choice((1, 3, 10, 100, 1000))):
            write_one(writer, f"Torch.a{generation}.{number}.forward", number)
            os.write(acknowledge, struct.pack("<qq", generation, number + 1))
        writer.close()

root, runs = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(20261115)
finished = []
for run in range(runs):
    read_end, write_end = os.pipe()
    folder = root / str(run) / "step0" / "rank"
    with DumpWriter(folder, DumpInfo(task="tensor", level="mix")) as writer:
        write_one(writer, "Torch.a0.0.forward", 0)
    child = os.fork()
    if child == 0:
        try:
            write_for_ever(folder, write_end, random.Random(run))
        finally:
            os._exit(1)
    os.close(write_end)
    time.sleep(chance.uniform(0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = b"".join(iter(lambda: os.read(read_end, 1 << 16), b""))
    os.close(read_end)
    # Before the first word from the child the dump from before is what there is.
    finished.append(struct.unpack("<qq", acknowledged[-16:]) if acknowledged else (0, 1))
print(json.dumps(finished))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, int]]]:
    root = tmp_path_factory.mktemp("killed")
    answer = subprocess.run(
        [sys.executable, "-c", KILLER, str(root), str(RUNS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return root, [(generation, count) for generation, count in json.loads(answer.stdout)]


Killed = tuple[Path, list[tuple[int, int]]]


def test_runs_were_killed_early_and_late(killed: Killed) -> None:
    _, finished = killed
    assert len(finished) == RUNS
    assert min(finished) < (2, 1)
    assert max(count for _, count in finished) > 20 and max(finished) > (3, 1)


def test_every_killed_run_opens_and_holds_all_its_finished_records(killed: Killed) -> None:
    root, finished = killed
    for run, (generation, count) in enumerate(finished):
        dump = open_dump(root / str(run))
        calls = list(dump)
        found = {int(call.name.split(".")[1][1:]) for call in calls}
        assert len(found) <= 1, "old and new dumps are never mixed"
        if found == {generation}:
            # The last one may have reached the disk without the child living to say so.
            assert len(calls) in (count, count + 1)
        else:
            # The next dump had begun.
            assert found <= {generation + 1} and len(calls) <= 1
        part = dump.parts[0]
        for number, call in enumerate(calls):
            assert call.name.endswith(f".{number}.forward")
            assert part.parent(call.name) == "Module.m.M.forward.0"
            assert part.stack(call.name)[0].line == number % 7
            for leaf in call.leaves():
                assert isinstance(leaf.value, TensorValue)
                data = part.load(leaf.value)
                assert data.shape == (number % 50,)
                assert (data.array == number).all()
        # The system may stop a killed process in the middle of a write, where a page ends, or when
        # a call's place is written and its record is not.
        allowed = (
            "the dump was not closed",
            "is incomplete and left out",
            "had begun and not ended",
        )
        assert all(any(a in gap.problem for a in allowed) for gap in part.gaps), part.gaps


def test_no_file_has_its_final_name_before_it_is_whole(killed: Killed) -> None:
    root, _ = killed
    for path in root.rglob("*.json"):
        json.loads(path.read_text())
