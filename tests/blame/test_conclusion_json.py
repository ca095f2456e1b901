"""The JSON form says why a result may be so far off and no further."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_buffers import write

from tensorprobe import blame


def test_what_would_be_explained_is_told_with_its_reasons(tmp_path: Path) -> None:
    pair = [
        write(tmp_path / side, "Torch.relu", given=1.0, found=7.0, result=result)
        for side, result in (("a", 5.5), ("b", 5.0))
    ]
    told = blame(*pair).to_json()["suspects"][0]["explained"]
    assert told["total"] == pytest.approx(sum(term["size"] for term in told["terms"]))
    assert all(term["reason"] for term in told["terms"])
