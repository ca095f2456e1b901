"""`import api_accuracy_checker.dump`: from here on the wanted iteration is waited for."""

from __future__ import annotations

from api_accuracy_checker.common.config import msCheckerConfig
from api_accuracy_checker.dump import dump
from api_accuracy_checker.dump.dump import set_dump_switch

__all__ = ["dump", "msCheckerConfig", "set_dump_switch"]
