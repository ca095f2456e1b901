"""The exception tree: every error that tensorprobe raises on purpose.

    TensorprobeError
    ├── ConfigError           a configuration that cannot be used
    ├── NameFormatError       a text that is not a call or value name
    ├── RebuildError          a recorded call that cannot be made again
    ├── ReportError           a result file that cannot be written
    ├── TableError            a result file that cannot be read
    └── DumpError             a dump, or a file of one, that cannot be read or written
        ├── UnsafeFileError   a file that asks for more than data: code, a path outside its folder
        ├── NewerFormatError  a dump that a newer tensorprobe wrote
        └── TensorFileError   one tensor's file is missing, cut short or no tensor

The command line prints the message in one line and exits with code 2, so a message says what is
wrong, where, what was found, what was wanted and what to do next.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DumpError",
    "NameFormatError",
    "NewerFormatError",
    "RebuildError",
    "ReportError",
    "TableError",
    "TensorFileError",
    "TensorprobeError",
    "UnsafeFileError",
]


class TensorprobeError(Exception):
    """The base of every error that tensorprobe raises on purpose."""


class ConfigError(TensorprobeError):
    """A configuration that cannot be used: which field, what it holds, what it may hold."""


class NameFormatError(TensorprobeError):
    """A text that is not the name of a call or of a value."""


class RebuildError(TensorprobeError):
    """A recorded call that cannot be made again: no such function here, or a lost argument."""


class ReportError(TensorprobeError):
    """A result file that cannot be written."""


class TableError(TensorprobeError):
    """A result file that cannot be read: damaged, cut short, or no table that was wanted."""


class DumpError(TensorprobeError):
    """A dump, or a file of one, that cannot be read or written."""


class UnsafeFileError(DumpError):
    """A file that asks for more than data: code to run, or a path outside its folder."""


class NewerFormatError(DumpError):
    """A dump that a newer tensorprobe wrote."""


class TensorFileError(DumpError):
    """The file of one tensor is missing, cut short, or holds no tensor."""
