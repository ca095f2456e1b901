"""What the folders and files of a dump are called."""

from __future__ import annotations

import os
import zlib
from os import PathLike
from pathlib import Path

__all__ = ["file_name_of", "rank_folder"]

_LONGEST_FILE_NAME = 255


def rank_folder(dump_path: str | PathLike[str], *, step: int, rank: int | None) -> Path:
    """Return the folder of one rank and step.

    >>> rank_folder("dump", step=2, rank=None).as_posix()
    'dump/step2/rank'
    """
    return Path(dump_path) / f"step{step}" / f"rank{'' if rank is None else rank}"


def file_name_of(name: str, suffix: str) -> str:
    """Return the file name for a value's name; the name itself wherever a folder can hold it.

    >>> file_name_of("Functional.linear.0.forward.input.0", ".pt")
    'Functional.linear.0.forward.input.0.pt'
    >>> file_name_of("loss/a.0.debug", ".pt")
    'loss_a.0.debug~4cf4c32e.pt'
    """
    room = _LONGEST_FILE_NAME - len(suffix)
    is_safe = "/" not in name and "\0" not in name
    # Asked of every value whose data are kept.
    if is_safe and (len(name) if name.isascii() else len(os.fsencode(name))) <= room:
        return name + suffix
    safe = name.replace("/", "_").replace("\0", "_")
    # The checksum keeps two names apart that read the same once they are changed.
    mark = f"~{zlib.crc32(os.fsencode(name)):08x}"
    shortened = os.fsencode(safe)[: room - len(mark)].decode(errors="ignore")
    return shortened + mark + suffix
