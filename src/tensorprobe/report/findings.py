"""The findings of `tensorprobe doctor` on the terminal or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tensorprobe.report.rows import Finding

__all__ = ["print_findings"]


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print a line per finding; plain text, since rich may be what is missing."""
    if as_json:
        sys.stdout.write(json.dumps({finding.what: finding.found for finding in findings}) + "\n")
        return
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "ok" if finding.is_good else "--"
        sys.stdout.write(f"{mark}  {finding.what.ljust(width)}  {finding.found}\n")
