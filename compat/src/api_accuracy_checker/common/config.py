"""`from api_accuracy_checker.common.config import msCheckerConfig`."""

from __future__ import annotations

from pathlib import Path

from tensorprobe.capture.checker_settings import CheckerConfig

__all__ = ["msCheckerConfig"]

msCheckerConfig = CheckerConfig(Path(__file__).parent.with_name("config.json"))  # noqa: N816
