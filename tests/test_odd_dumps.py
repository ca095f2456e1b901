"""300 dumps of valid JSON with values that nobody expects, given to every command.

No command ends in a traceback or blames itself, and the sound calls between the odd ones come out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DUMPS = 300
MEMORY = 2 << 30


@pytest.mark.parametrize("command", ["show", "compare", "blame", "precheck", "overflow"])
def test_odd_dumps_get_an_answer(tmp_path: Path, command: str) -> None:
    program = Path(__file__).with_name("look_at_odd_dumps.py")
    answer = subprocess.run(
        [sys.executable, str(program), command, str(tmp_path), str(DUMPS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    told = json.loads(answer.stdout)
    assert not told["failures"], "\n".join(told["failures"][:10])
    assert told["peak"] < MEMORY
