"""The data files of one dump: each value's name gives one file, and no two share one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal

from tensorprobe.dtypes import DType
from tensorprobe.store.data_folder import inside
from tensorprobe.store.file_names import file_name_of
from tensorprobe.store.pending_file import Lose, PendingFile
from tensorprobe.store.tensor_bytes import contiguous_bytes, npy_frame, pt_frame
from tensorprobe.tensor_data import TensorData

__all__ = ["TakenNames", "TensorFiles"]


class TakenNames:
    """The names of data files that a dump has given away."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names)

    def take(self, data_name: str) -> bool:
        """Whether a name was still free; it is taken now."""
        with self._lock:
            is_free = data_name not in self._names
            self._names.add(data_name)
            return is_free


class TensorFiles:
    """Makes the data files of one writer's values.

    Args:
        folder: where they go; made when the first one comes.
        file_format: `pt`, or `npy` for the data that npy can hold.
        names: what is taken in this folder.
        lose: told of data that cannot be written.
    """

    def __init__(
        self, folder: Path, file_format: Literal["pt", "npy"], names: TakenNames, lose: Lose
    ) -> None:
        self._folder = os.fspath(folder)
        self._file_format = file_format
        self._lose = lose
        self.names = names

    @property
    def takes_strides(self) -> bool:
        """Whether elements may be written in another order than C's."""
        return self._file_format == "pt"

    def promise(
        self,
        name: str,
        dtype: DType,
        shape: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
        checksum: int | None = None,
    ) -> PendingFile | None:
        """Return the file that a value's data will be written to; None if its name is taken.

        Args:
            name: the value's name, `Functional.linear.0.forward.input.0`.
            dtype: of the tensor.
            shape: of the tensor.
            strides: of its elements in the file, where they `takes_strides`; by default C's.
            checksum: the CRC-32 of its bytes, where that is known.
        """
        frame, suffix = self.frame_of(dtype, shape, strides=strides, checksum=checksum)
        return self._take(name, suffix, frame)

    def frame_of(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
        checksum: int | None = None,
    ) -> tuple[tuple[bytes, bytes], str]:
        """Return what stands around the data of a tensor in its file, and what its name ends with.

        Args:
            dtype: of the tensor.
            shape: of the tensor.
            strides: as `promise` takes them.
            checksum: the CRC-32 of its bytes, where that is known.
        """
        if self._file_format == "npy" and dtype.native:
            return npy_frame(dtype, shape), ".npy"
        return pt_frame(dtype, shape, strides=strides, checksum=checksum), ".pt"

    def promise_link(self, name: str, source: PendingFile) -> PendingFile | None:
        """Return what may become a second name of a file; None if that name is taken.

        Args:
            name: the new value's name.
            source: the file of the same data, which it has to follow.
        """
        return self._take(name, source.suffix)

    def save(self, name: str, data: TensorData, *, checksum: int | None = None) -> str | None:
        """Write a tensor's data now; returns the file's name, or None if it is lost."""
        file = self.promise(name, data.dtype, data.shape, checksum=checksum)
        if file is None:
            return None
        file.write(contiguous_bytes(data))
        return file.data_name

    def link(self, name: str, data_name: str) -> str | None:
        """Give a file that is written a second name now; returns that, or None if it is lost."""
        source = inside(Path(self._folder), data_name)
        if file_name_of(name, source.suffix) == data_name:
            return data_name
        linked = self._take(name, source.suffix)
        if linked is None:
            return None
        linked.link_to(os.fspath(source))
        return linked.data_name

    def _take(
        self, name: str, suffix: str, frame: tuple[bytes, bytes] = (b"", b"")
    ) -> PendingFile | None:
        data_name = file_name_of(name, suffix)
        if not self.names.take(data_name):
            self._lose(name, data_name, None)
            return None
        return PendingFile(name, self._folder, data_name, suffix, frame, self._lose)
