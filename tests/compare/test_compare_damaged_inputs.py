"""2,000 damaged inputs: each gives a result with named gaps, or is refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from conftest import DATA

INPUTS = 2_000


def test_damaged_inputs_never_crash_hang_or_eat_memory(tmp_path: Path) -> None:
    program = Path(__file__).with_name("mutate_compare.py")
    answer = subprocess.run(
        [sys.executable, str(program), str(DATA / "peer_dumps"), str(tmp_path), str(INPUTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    told = json.loads(answer.stdout)
    assert told["peak"] < 1 << 30
    endings = Counter(told["endings"])
    assert endings.total() == INPUTS
    for ending in ("refused", "gaps named", "differences found", "compared"):
        assert sum(n for found, n in endings.items() if found.endswith(ending)) > 20, endings
