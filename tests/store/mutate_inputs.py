"""Open thousands of damaged dumps and report what happened; run by test_mutated_inputs.

    python tests/store/mutate_inputs.py PEER_DUMPS SCRATCH COUNT [SEED]

A process of its own, so that its memory can be limited and looked at.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

from tensorprobe.config import load_config
from tensorprobe.errors import ConfigError, DumpError, TensorprobeError
from tensorprobe.records import CallRecord, DumpInfo, Frame, TensorValue
from tensorprobe.show.command import show_dump
from tensorprobe.store import DumpWriter, open_dump
from tensorprobe.store.leaves import leaves_of
from tensorprobe.system.text_file import read_yaml

SECONDS_PER_INPUT = 20
MEMORY_LIMIT = 1 << 30

# Folder to copy, and the file in it that is damaged.
SOURCES = (
    ("msprobe-8.2.1/mlp/L1_tensor/npu/step0/rank", "dump.json"),
    (
        "msprobe-8.2.1/mlp/L1_tensor/npu/step0/rank",
        "dump_tensor_data/Functional.linear.0.forward.input.0.pt",
    ),
    ("msprobe-8.2.1/mlp/mix_statistics/npu/step0/rank", "dump.json"),
    ("msprobe-8.2.1/mlp/mix_statistics/npu/step0/rank", "stack.json"),
    ("msprobe-8.2.1/mlp/mix_statistics/npu/step0/rank", "construct.json"),
    ("msprobe-8.2.1/debug_save/tensor/npu/step0/rank", "debug.json"),
    ("msprobe-8.2.1/structure/L0/npu/step0/rank", "construct.json"),
    ("api_accuracy_checker/2024-10/real_data/step0", "forward_info_2310.json"),
    ("api_accuracy_checker/2024-10/real_data/step0", "stack_info_2310.json"),
    (
        "api_accuracy_checker/2024-10/real_data/step0",
        "forward_real_data/rank2310/Functional.conv2d.0.0.pt",
    ),
    ("ptdbg_ascend/2024-03/all/npu/ptdbg_dump_v3.0/step0/rank103447", "api_stack_dump.pkl"),
    (
        "ptdbg_ascend/2024-03/all/npu/ptdbg_dump_v3.0/step0/rank103447",
        "api_stack_dump/Functional_conv2d_0_forward_input.0.npy",
    ),
    ("journal", "dump.json.part"),
    ("journal", "stack.json.part"),
    ("journal", "construct.json.part"),
    ("yaml", "config.yaml"),
)
YAML = "task: tensor\nstep: [0, '4-6']\ntensor: {list: [relu], data_mode: [forward]}\nlevel: mix\n"
NASTY = (
    b"1e999",
    b"-1",
    b"[" * 300,
    b'{"a":' * 300,
    b"9" * 5000,
    b"null",
    b'"\\ud800"',
    b"\xff\xfe",
    b"\0",
    b"&a [*a]",
    b"!!python/object:os.system ",
)


def damage(text: bytes, chance: random.Random) -> tuple[bytes, bool]:
    """Return the damaged text, and whether it was cut."""
    place = chance.randrange(len(text))
    other = chance.randrange(len(text))
    kind = chance.randrange(6)
    if kind == 0:
        return text[:place], True
    if kind == 1:
        flipped = bytearray(text)
        for _ in range(chance.choice((1, 1, 1, 8, 64))):
            flipped[chance.randrange(len(text))] = chance.randrange(256)
        return bytes(flipped), False
    low, high = sorted((place, other))
    if kind == 2:
        return text[:low] + text[high:], False
    if kind == 3:
        return text[:high] + text[low:], False
    if kind == 4:
        return text[:place] + chance.choice(NASTY) + text[place:], False
    return text[:place] + chance.randbytes(chance.randrange(1, 64)) + text[place:], False


def write_journal(folder: Path) -> None:
    writer = DumpWriter(folder, DumpInfo(level="mix"))
    for number in range(20):
        call = CallRecord(f"Torch.a.{number}.forward", (TensorValue("torch.float32", (2,), 1.0),))
        writer.write(
            call, stack=(Frame("t.py", number, "f", "a(x)"),), parent="Module.m.M.forward.0"
        )
    # Not closed: what a killed run leaves.


def look_at(folder: Path, file: str, *, show: bool) -> str:
    """Use a dump as a person would; returns how it ended."""
    if file.endswith(".yaml"):
        read_yaml(folder / file)
        load_config(folder / file)
        return "opened"
    dump = open_dump(folder)
    for part, flat in zip(dump.parts, open_dump(folder).parts, strict=True):
        read = repr(list(flat.read_leaves()))
        assert read == repr([leaves_of(call) for call in part])
        assert flat.known_gaps == part.known_gaps
    unreadable = 0
    for part in dump.parts:
        for call in part:
            for leaf in call.leaves():
                if isinstance(leaf.value, TensorValue) and leaf.value.data_name is not None:
                    try:
                        part.load(leaf.value)
                    except DumpError as err:
                        assert "\n" not in str(err)
                        unreadable += 1
    gaps = [str(gap) for gap in dump.gaps]
    assert not any("\n" in gap for gap in gaps), gaps
    if show:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            show_dump(str(folder))
            show_dump(str(folder), next(iter(dump.parts[0].names), None), as_json=True)
    if gaps:
        assert all(folder.name in gap for gap in gaps), gaps
        return "gaps named"
    return "unreadable tensor" if unreadable else "opened"


def main() -> None:
    peers, scratch, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (2 * MEMORY_LIMIT, 2 * MEMORY_LIMIT))
    chance = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 0)
    pristine = scratch / "pristine"
    write_journal(pristine / "journal")
    (pristine / "yaml").mkdir()
    (pristine / "yaml" / "config.yaml").write_text(YAML)
    endings: Counter[str] = Counter()
    for number in range(count):
        index = number % len(SOURCES)
        source, file = SOURCES[index]
        original = pristine / source if (pristine / source).exists() else peers / source
        folder = scratch / f"damaged{index}"
        if not folder.exists():
            shutil.copytree(original, folder)
        text, is_cut = damage((original / file).read_bytes(), chance)
        # A new file each time: the one before may still be mapped.
        (folder / file).unlink()
        (folder / file).write_bytes(text)
        signal.alarm(SECONDS_PER_INPUT)
        try:
            ending = look_at(folder, file, show=chance.random() < 0.1)
        except TensorprobeError as err:
            assert "\n" not in str(err), err
            assert folder.name in str(err) or isinstance(err, ConfigError), err
            ending = "refused"
        finally:
            signal.alarm(0)
        # A journal is cut by nature, and text lines and YAML may be cut at an end.
        if is_cut and ending == "opened" and not file.endswith((".pkl", ".yaml", ".part")):
            raise AssertionError(f"input {number}: {file} of {source}, cut, was taken as whole")
        endings[f"{file.rpartition('.')[2]}: {ending}"] += 1
    with Path("/proc/self/status").open() as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    sys.stdout.write(json.dumps({"endings": endings, "peak": peak}))


if __name__ == "__main__":
    main()
