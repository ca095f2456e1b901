"""Whether an older tool is installed beside the package that has its import names.

pip does not mind that two packages have files of the same names: the one that is installed later
overwrites those of the other, and uninstalling either takes them away from both.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

__all__ = ["COMPAT", "is_as_shipped", "name_clash", "owner_of_msprobe"]

COMPAT = "tensorprobe-compat"
"""The package with the import names of the older tools."""

_MSPROBE = "mindstudio-probe"


def _installed_version(distribution: str) -> str | None:
    """Return the version of a package that is installed; None if it is not."""
    try:
        found: str | None = version(distribution)
    except PackageNotFoundError:
        return None
    except KeyError:
        # What describes it is damaged.
        found = None
    return found or "of unknown version"


def owner_of_msprobe() -> tuple[str, bool]:
    """Return who answers to the name msprobe, in words, and whether that is all right."""
    if (clash := name_clash("msprobe", _MSPROBE)) is not None:
        return clash, False
    for package in (COMPAT, _MSPROBE):
        if (its_version := _installed_version(package)) is not None:
            return f"{package} {its_version}", True
    return f"absent: scripts and commands of the older tools need {COMPAT}", False


def is_as_shipped(path: Path) -> bool:
    """Whether a file of that package is the one that pip has put there, as pip has noted.

    Of a file that pip has not put there nobody knows.
    """
    try:
        known = files(COMPAT) or []
    except PackageNotFoundError:
        return False
    for file in known:
        if file.name != path.name or file.hash is None:
            continue
        if os.path.realpath(str(file.locate())) == os.path.realpath(path):
            digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
            return base64.urlsafe_b64encode(digest).decode().rstrip("=") == file.hash.value
    return False


def name_clash(name: str, distribution: str) -> str | None:
    """Return what to tell where an older tool is installed as well; None where it is not.

    Args:
        name: what both are imported by.
        distribution: what pip calls the older tool.
    """
    its_version = _installed_version(distribution)
    if its_version is None:
        return None
    spec = importlib.util.find_spec(name)
    origin = None if spec is None else spec.origin
    is_ours = origin is not None and "tensorprobe" in _text_of(Path(origin))
    if not is_ours and _installed_version(COMPAT) is None:
        return None
    owner = COMPAT if is_ours else distribution
    return (
        f"{distribution} {its_version} is installed beside {COMPAT}, and both own the name {name}, "
        f"which is now that of {owner}: files of the one stand over files of the other; keep one: "
        f"pip uninstall {distribution} {COMPAT}, then install the one that is wanted"
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
