"""The real msprobe 8.2.1 reads our dump and finds it equal to the same dump of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from conftest import peer_root
from dump_copy import copy_rank
from tensorprobe.records import (
    CallRecord,
    DtypeValue,
    DumpInfo,
    ListValue,
    ScalarValue,
    SliceValue,
    TensorValue,
    UnknownValue,
)
from tensorprobe.store import DumpWriter, open_dump

PEER = os.environ.get("TENSORPROBE_PEER_PYTHON", "")
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not PEER, reason="TENSORPROBE_PEER_PYTHON names no Python with msprobe"),
]

SAME = {"Yes", "None", "pass", None, ""}
DIFFERENCES = ("EucDist", "MaxAbsErr", "Max diff", "Min diff", "Mean diff", "L2norm diff")

READ_SHEET = """
import json, sys, openpyxl
rows = list(openpyxl.load_workbook(sys.argv[1]).active.values)
print(json.dumps([dict(zip(rows[0], row)) for row in rows[1:]]))
"""


def compare_with_msprobe(ours: Path, theirs: Path, scratch: Path) -> list[dict[str, object]]:
    scratch.mkdir(parents=True)
    task = scratch / "compare.json"
    task.write_text(json.dumps({"npu_path": str(ours), "bench_path": str(theirs)}))
    msprobe = Path(PEER).with_name("msprobe")
    answer = subprocess.run(
        [msprobe, "-f", "pytorch", "compare", "-i", task, "-o", scratch / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (sheet,) = (scratch / "out").glob("*.xlsx")
    told = subprocess.run(
        [PEER, "-c", READ_SHEET, sheet], capture_output=True, text=True, check=True
    )
    rows: list[dict[str, object]] = json.loads(told.stdout)
    return rows


@pytest.mark.parametrize(
    "source",
    [
        "mlp/L1_tensor/npu",
        "mlp/mix_statistics/npu",
        "mlp/L1_md5/npu",
        "lowp/L1_tensor/npu",
        "edge/mix_statistics/npu",
        "debug_save/tensor/npu",
        "dist/L1_md5/npu",
        "gpt/L0_statistics_2steps/npu",
    ],
)
def test_our_copy_of_a_dump_is_equal_for_msprobe(tmp_path: Path, source: str) -> None:
    theirs = open_dump(peer_root() / "msprobe-8.2.1" / source)
    for number, part in enumerate(theirs.parts):
        copy_rank(part, tmp_path / part.label)
        ours = tmp_path / part.label / part.path.name
        rows = compare_with_msprobe(ours, part.path, tmp_path / f"scratch{number}")
        assert len(rows) == sum(1 for call in part for _ in call.leaves())
        for row in rows:
            assert row["NPU Name"] == row["Bench Name"]
            assert row.get("Accuracy Reached or Not", row.get("Result")) in SAME
            assert row["Requires_grad Consistent"] is True
            assert all(
                row.get(key) in (None, 0, "N/A", "Nan", "unsupported") for key in DIFFERENCES
            )


def test_what_only_we_record_does_not_disturb_msprobe(tmp_path: Path) -> None:
    call = CallRecord(
        "Tensor.__getitem__.0.forward",
        inputs=(
            ListValue((SliceValue(None, 1, None), ScalarValue("int", 0)), is_tuple=True),
            UnknownValue("MyClass", "something"),
            DtypeValue("torch.float16"),
            ScalarValue("complex", 1 + 2j),
        ),
        kwargs={},
        outputs=(None,),
    )
    part = TensorValue(
        "torch.float32", (4, 8), 1.0, 0.0, 0.5, 2.0, False, form="DTensor [8, 8] (Shard(dim=0))"
    )
    nothing = TensorValue("torch.float32", (4, 8), requires_grad=False, form="meta")
    compiled = CallRecord("Torch.compiled.loss.0.forward", (part, nothing), {}, (part,))
    for side in ("ours", "same"):
        with DumpWriter(tmp_path / side, DumpInfo(level="L1")) as writer:
            assert writer.write(call)
            assert writer.write(compiled)
    rows = compare_with_msprobe(
        tmp_path / "ours/dump.json", tmp_path / "same/dump.json", tmp_path / "scratch"
    )
    leaves = [*call.leaves(), *compiled.leaves()]
    assert [row["NPU Name"] for row in rows] == [leaf.name for leaf in leaves]
    assert all(row["Result"] in SAME for row in rows)
