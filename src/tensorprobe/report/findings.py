"""The findings of `tensorprobe doctor` on the terminal or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tensorprobe.report.lines import print_line
from tensorprobe.report.rows import Finding

__all__ = ["print_findings"]


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print a line per finding; plain text, since rich may be what is missing."""
    if as_json:
        print_line(json.dumps({finding.what: finding.found for finding in findings}))
        return
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "ok" if finding.is_good else "--"
        print_line(f"{mark}  {finding.what.ljust(width)}  {finding.found}")
