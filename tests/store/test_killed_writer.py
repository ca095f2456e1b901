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

def write_for_ever(folder, acknowledge):
    info = DumpInfo(task="tensor", level="mix")
    writer = DumpWriter(folder, info)
    for number in range(100_000):
        name = f"Torch.a.{number}.forward"
        data = TensorData(DTYPES["torch.float32"], np.full((number % 50,), number, np.float32))
        saved = writer.save_tensor(f"{name}.input.0", data)
        linked = writer.link_tensor(f"{name}.input.1", saved)
        files = (saved, linked)
        values = tuple(TensorValue("torch.float32", data.shape, data_name=file) for file in files)
        stack = (Frame("train.py", number % 7, "forward", "a(x)"),)
        assert writer.write(CallRecord(name, values), stack=stack, parent="Module.m.M.forward.0")
        os.write(acknowledge, struct.pack("<q", number + 1))

root, runs = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(20261115)
finished = []
for run in range(runs):
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_for_ever(root / str(run) / "step0" / "rank", write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    time.sleep(chance.uniform(0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = b"".join(iter(lambda: os.read(read_end, 1 << 16), b""))
    os.close(read_end)
    finished.append(len(acknowledged) // 8)
print(json.dumps(finished))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    root = tmp_path_factory.mktemp("killed")
    answer = subprocess.run(
        [sys.executable, "-c", KILLER, str(root), str(RUNS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return root, json.loads(answer.stdout)


def test_runs_were_killed_early_and_late(killed: tuple[Path, list[int]]) -> None:
    _, finished = killed
    assert len(finished) == RUNS
    assert min(finished) < 5 and max(finished) > 20


def test_every_killed_run_holds_all_its_finished_records(killed: tuple[Path, list[int]]) -> None:
    root, finished = killed
    opened = 0
    for run, count in enumerate(finished):
        folder = root / str(run)
        if not list(folder.rglob("*.part")):
            # Killed before the writer had made its first file: there was nothing to lose.
            assert count == 0
            continue
        opened += 1
        dump = open_dump(folder)
        calls = list(dump)
        # The last one may have reached the disk without the child living to say so.
        assert len(calls) in (count, count + 1)
        part = dump.parts[0]
        for number, call in enumerate(calls):
            assert call.name == f"Torch.a.{number}.forward"
            assert part.parent(call.name) == "Module.m.M.forward.0"
            assert part.stack(call.name)[0].line == number % 7
            for leaf in call.leaves():
                assert isinstance(leaf.value, TensorValue)
                data = part.load(leaf.value)
                assert data.shape == (number % 50,)
                assert (data.array == number).all()
    assert opened > RUNS * 0.9


def test_no_file_has_its_final_name_before_it_is_whole(killed: tuple[Path, list[int]]) -> None:
    root, _ = killed
    assert not list(root.rglob("*.json"))
