"""Compare thousands of damaged dumps and report what happened; run by test_compare_damaged_inputs.

    python tests/compare/mutate_compare.py PEER_DUMPS SCRATCH COUNT [SEED]

The damage is that of tests/store/mutate_inputs.py. A process of its own, so that its memory can be
limited and looked at.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))

from mutate_inputs import MEMORY_LIMIT, SECONDS_PER_INPUT, SOURCES, damage, write_journal

from tensorprobe.compare import compare
from tensorprobe.errors import TensorprobeError

MAPPING = "Functional.linear.0.forward.input.0: Functional.linear.1.forward.input.0\n"


def options_of(chance: random.Random) -> dict[str, Any]:
    return {
        "formats": [chance.choice(("csv", "csv", "json", "xlsx"))],
        "fuzzy": chance.random() < 0.2,
        "highlight": chance.random() < 0.5,
        "first_difference": chance.random() < 0.3,
    }


def compare_damaged(
    damaged: Path, file: str, whole: Path, output: Path, chance: random.Random
) -> str:
    """Compare a damaged dump with the whole one, either way round; say how it ended."""
    options = options_of(chance)
    sides = (damaged, whole) if chance.random() < 0.5 else (whole, damaged)
    if file.endswith(".yaml"):
        options |= {"mapping": damaged / file, "fuzzy": False}
        sides = (whole, whole)
    result = compare(*sides, output, **options)
    problems = [*result.problems, *(str(gap) for part in result.parts for gap in part.gaps)]
    assert not any("\n" in problem for problem in problems), problems
    assert all(path.stat().st_size for path in result.files)
    if problems:
        return "gaps named"
    rows = sum(part.tally.rows for part in result.parts)
    unequal = sum(part.tally.failed + part.tally.unmatched for part in result.parts)
    return "differences found" if unequal or not rows else "compared"


def main() -> None:
    peers, scratch, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (2 * MEMORY_LIMIT, 2 * MEMORY_LIMIT))
    chance = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 0)
    pristine = scratch / "pristine"
    write_journal(pristine / "journal")
    (pristine / "yaml").mkdir()
    (pristine / "yaml" / "config.yaml").write_text(MAPPING)
    tensors = peers / "msprobe-8.2.1/mlp/L1_tensor/npu/step0/rank"
    output = scratch / "output"
    endings: Counter[str] = Counter()
    for number in range(count):
        index = number % len(SOURCES)
        source, file = SOURCES[index]
        original = pristine / source if (pristine / source).exists() else peers / source
        folder = scratch / f"damaged{index}"
        if not folder.exists():
            shutil.copytree(original, folder)
        text, _ = damage((original / file).read_bytes(), chance)
        (folder / file).unlink()
        (folder / file).write_bytes(text)
        whole = tensors if file.endswith(".yaml") else original
        signal.alarm(SECONDS_PER_INPUT)
        try:
            ending = compare_damaged(folder, file, whole, output, chance)
        except TensorprobeError as err:
            assert "\n" not in str(err), err
            ending = "refused"
        finally:
            signal.alarm(0)
        left = [path.name for path in output.iterdir()] if output.exists() else []
        assert not any(name.startswith(".") for name in left), left
        shutil.rmtree(output, ignore_errors=True)
        endings[f"{file.rpartition('.')[2]}: {ending}"] += 1
    with Path("/proc/self/status").open() as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    sys.stdout.write(json.dumps({"endings": endings, "peak": peak}))


if __name__ == "__main__":
    main()
