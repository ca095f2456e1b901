"""Say when the tool whose import names these are is installed as well."""

from __future__ import annotations

from tensorprobe.older_tools import name_clash
from tensorprobe.system.standard_streams import complain

__all__ = ["tell_of_clash"]


def tell_of_clash(name: str, distribution: str) -> None:
    """Say, in one line, that a package of the older tool is here, too.

    Args:
        name: what both are imported by.
        distribution: what pip calls the older tool.
    """
    clash = name_clash(name, distribution)
    if clash is not None:
        complain(clash)
