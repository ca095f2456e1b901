"""Find a dump's files without ever leaving its folder, whatever the dump says."""

from __future__ import annotations

import math
import os
import re
import stat
from pathlib import Path

from tensorprobe.dtypes import dtype_named
from tensorprobe.errors import UnsafeFileError
from tensorprobe.records import TensorValue
from tensorprobe.store.tensor_file import load_tensor
from tensorprobe.tensor_data import TensorData

__all__ = ["DataFolder", "inside"]


# The name of a file that stands in the folder itself: a word without dots alone, slashes and NULs.
_FILE_NAME = re.compile(r"[^/\0.][^/\0]*")


def inside(root: Path, relative: str) -> Path:
    """Return `root / relative` if that stays in `root`, also through symbolic links.

    >>> inside(Path("."), "../x")
    Traceback (most recent call last):
    tensorprobe.errors.UnsafeFileError: the name '../x' leads out of its folder .; it was not opened

    Raises:
        UnsafeFileError: the name or a link on the way leads elsewhere.
    """
    parts = relative.split("/")
    if not relative or "\0" in relative or parts[0] == "" or ".." in parts:
        raise UnsafeFileError(
            f"the name {relative!r} leads out of its folder {root}; it was not opened"
        )
    path = root / relative
    if _has_link_below(root, parts):
        real_root, real_path = os.path.realpath(root), os.path.realpath(path)
        if os.path.commonpath([real_root, real_path]) != real_root:
            raise UnsafeFileError(
                f"{path} is a link that leads out of its folder {root}; it was not opened"
            )
    return path


def _has_link_below(root: Path, parts: list[str]) -> bool:
    path = os.fspath(root)
    for part in parts:
        path = f"{path}/{part}"
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode):
                return True
        except OSError:
            # Not there: the reader of the file says so.
            return False
    return False


class DataFolder:
    """The folder with the tensors of one rank's dump.

    Args:
        root: the folder that nothing may leave; the one with the dump's JSON.
        below: where in it the tensors' names start.
    """

    def __init__(self, root: Path, below: str = "") -> None:
        self.root = root
        self._below = f"{below}/" if below else ""
        self._folder = os.path.join(root, below)
        # Asked once: the folder of a dump's tensors has thousands of files.
        self._is_plain: bool | None = None

    @property
    def is_there(self) -> bool:
        """Whether the folder itself exists and may be looked into."""
        return os.path.isdir(self._folder) and os.access(self._folder, os.R_OK | os.X_OK)

    def holds(self, data_name: str) -> bool:
        """Whether there is a file of a name; who opens one that is unsafe is told so."""
        try:
            os.lstat(self.path_of(data_name))
        except FileNotFoundError:
            return False
        except (UnsafeFileError, OSError, ValueError):
            return True
        return True

    def path_of(self, data_name: str) -> str:
        """Return the path of a tensor's file, which may be missing.

        Raises:
            UnsafeFileError: the name leads out of the folder.
        """
        if self._is_in_folder(data_name):
            path = f"{self._folder}/{data_name}"
            try:
                if not stat.S_ISLNK(os.lstat(path).st_mode):
                    return path
            except (OSError, ValueError):
                return path  # the reader of the file says what is wrong with it
        return os.fspath(self._inside(data_name))

    def identify(self, data_name: str) -> tuple[int, int]:
        """Return device and number of a tensor's file: the same for two names of one file.

        Raises:
            UnsafeFileError: the name leads out of the folder.
            OSError: there is no such file.
            ValueError: no file can have such a name.
        """
        if self._is_in_folder(data_name):
            status = os.lstat(f"{self._folder}/{data_name}")
            if not stat.S_ISLNK(status.st_mode):
                return status.st_dev, status.st_ino
        status = os.stat(self._inside(data_name))
        return status.st_dev, status.st_ino

    def _is_in_folder(self, data_name: str) -> bool:
        """Whether a name is that of a file in the folder itself, which no link leads to."""
        if self._is_plain is None:
            self._is_plain = not _has_link_below(self.root, self._below.split("/")[:-1])
        return self._is_plain and _FILE_NAME.fullmatch(data_name) is not None

    def _inside(self, data_name: str) -> Path:
        return inside(self.root, self._below + data_name if data_name[:1] != "/" else data_name)

    def load(self, data_name: str) -> TensorData:
        """Map a tensor's data.

        Raises:
            UnsafeFileError: the name leads out of the folder, or the file asks for code.
            TensorFileError: the file is missing, cut short or no tensor.
        """
        return load_tensor(self.path_of(data_name))

    def problem_with(self, tensor: TensorValue) -> str | None:
        """Say what is wrong with a tensor's file as far as can be told without opening it."""
        data_name = tensor.data_name or ""
        dtype = dtype_named(tensor.dtype)
        needed = 0 if dtype is None else math.prod(tensor.shape) * dtype.itemsize
        try:
            size = os.path.getsize(self.path_of(data_name))
            if not size:
                return f"the data file {data_name} is empty"
            if size < needed:
                return f"the data file {data_name} is cut short: {size} bytes, {needed} needed"
        except UnsafeFileError as err:
            return str(err)
        except (OSError, ValueError):
            return f"the data file {data_name} is missing"
        return None

    def describe(self, data_name: str) -> tuple[str, tuple[int, ...]]:
        """Return the dtype and shape that a tensor's file says."""
        data = self.load(data_name)
        return data.dtype.name, data.shape
