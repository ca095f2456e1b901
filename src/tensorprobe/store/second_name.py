"""Let the data of one file stand under a second name, too, without a copy where that can be."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from tensorprobe.system.new_file import new_file

__all__ = ["give_second_name"]


def give_second_name(file: Path, path: Path) -> None:
    """Give a file another name in the same file system; what had that name is replaced.

    Raises:
        OSError: the name cannot be given.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    try:
        os.link(file, path, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        # A file system without second names, as FAT or some of those behind a network.
        with (
            file.open("rb") as original,
            new_file(path) as descriptor,
            open(descriptor, "wb", closefd=False) as copy,
        ):
            shutil.copyfileobj(original, copy)
