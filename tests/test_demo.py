"""`make demo` finds the planted fault, in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.demo import faulty_norm


def test_the_demo_names_the_faulty_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert faulty_norm.main(str(tmp_path / "demo")) == 0
    text = capsys.readouterr().out
    assert "culprit     Functional.layer_norm.0.forward.output.0\n" in text
    assert "faulty_norm.py:" in text and "hidden = self.norm(" in text
    assert "first that fails: Functional.layer_norm.0.forward.output.0" in text
    assert (
        text.count("input.4 (eps) is 0.5, in the reference 1e-05") == 2
    )  # blame, and then compare
    assert "data of output.0" in text
