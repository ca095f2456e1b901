"""2,000 damaged inputs: each is refused in one line or opens and names what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from conftest import DATA

INPUTS = 2_000


def test_damaged_inputs_never_crash_hang_or_eat_memory(tmp_path: Path) -> None:
    program = Path(__file__).with_name("mutate_inputs.py")
    answer = subprocess.run(
        [sys.executable, str(program), str(DATA / "peer_dumps"), str(tmp_path), str(INPUTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["peak"] < 1 << 30
    endings = Counter(told["endings"])
    assert endings.total() == INPUTS
    # The damage was real, and of every kind of file.
    for kind in ("json", "pt", "npy", "pkl", "yaml", "part"):
        assert sum(n for ending, n in endings.items() if ending.startswith(kind)) > 50
    assert sum(n for ending, n in endings.items() if not ending.endswith("opened")) > INPUTS / 3
