"""The list of functions to capture that a user keeps: a support_wrap_ops.yaml of the older tools.

    functional, tensor, torch, _VF, distributed   what is listed is captured, and nothing else of it
    torch_npu, mindspeed, aten                    the same where the section names anything

Our own list, beside this file, has every function that is captured without one. What not even that
has is of a newer torch, and is captured whatever a list says.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorprobe.errors import ConfigError
from tensorprobe.older_tools import is_as_shipped
from tensorprobe.system.text_file import read_yaml, show_path

__all__ = ["OWN_LIST", "ApiList", "edited_list"]

OWN_LIST = Path(__file__).with_name("support_wrap_ops.yaml")
"""What is captured without any list; it must not be edited."""

# The sections of the file, and the type that their functions have in a dump.
_SECTIONS = {
    "functional": "Functional",
    "tensor": "Tensor",
    "torch": "Torch",
    "_VF": "VF",
    "distributed": "Distributed",
    "npu_distributed": "Distributed",
    "torch_npu": "NPU",
    "mindspeed": "MindSpeed",
    "aten": "Aten",
}
# Of these our own list has all; an empty section leaves all of them out.
_COVERED = ("functional", "tensor", "torch", "_VF", "distributed")
# Where the functions of others are, for those that torch does not tell about.
_HOMES = {"torch_npu": "torch_npu", "mindspeed": "mindspeed.ops"}


def edited_list(folder: Path) -> Path | None:
    """Return the list in a folder, if it is no longer the one that was shipped there.

    Args:
        folder: of a package that ships a copy of our own list.
    """
    path = folder / "support_wrap_ops.yaml"
    # In a package that somebody has packed anew it may be missing.
    if not path.exists() or path.read_bytes() == OWN_LIST.read_bytes():
        return None
    # One of another age than ours is no edit, and would leave out what it does not know.
    return None if is_as_shipped(path) else path


class ApiList:
    """What a list says.

    Args:
        path: the file.
        as_in_dump: returns the name that a function has in a dump.

    Attributes:
        added: functions of other packages that it names, as `add_apis` would.

    Raises:
        ConfigError: the file cannot be read, or is no such list.
    """

    def __init__(self, path: str | os.PathLike[str], as_in_dump: Callable[[str], str]) -> None:
        sections = _read_sections(path)
        self._names = frozenset(_full_names(sections, as_in_dump))
        self._own = _own_names(as_in_dump)
        # Whatever is not listed of these is left out.
        limited = {section for section, names in sections.items() if names}
        self._limited = {_SECTIONS[section] for section in (*_COVERED, *limited)}
        self.added = tuple(
            f"{home}.{name}" for section, home in _HOMES.items() for name in sections[section]
        )

    @property
    def left_out(self) -> int:
        """How many functions of our own list are not to be captured."""
        return sum(map(self.leaves_out, self._own))

    def names(self, full_name: str) -> bool:
        """Whether a function is listed, `Tensor.__getitem__`."""
        return full_name in self._names

    def leaves_out(self, full_name: str) -> bool:
        """Whether a function is not to be captured."""
        kind = full_name.partition(".")[0]
        if full_name in self._names or kind not in self._limited:
            return False
        is_covered = any(_SECTIONS[section] == kind for section in _COVERED)
        return not is_covered or full_name in self._own


def _read_sections(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    where = show_path(path)
    found = read_yaml(path, error=ConfigError)
    if not isinstance(found, dict) or not found:
        wanted = ", ".join(_SECTIONS)
        raise ConfigError(
            f"{where}: this is no list of functions; wanted sections such as {wanted}"
        )
    for section in found:
        if section not in _SECTIONS:
            near = difflib.get_close_matches(str(section), _SECTIONS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(_SECTIONS)}"
            raise ConfigError(f"{where}: the section {str(section)[:60]!r} is not known{hint}")
    return {section: _checked(found.get(section), section, where) for section in _SECTIONS}


def _checked(names: object, section: str, where: str) -> list[str]:
    """Return the names of a section; one that is empty, or not there, has none."""
    if names is None:
        return []
    if not isinstance(names, list):
        raise ConfigError(f"{where}: {section} holds {str(names)[:60]!r}, wanted a list of names")
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(
                f"{where}: {section} holds {str(name)[:60]!r}, wanted names such as '- gelu'"
            )
    return names


def _full_names(sections: Mapping[str, list[str]], as_in_dump: Callable[[str], str]) -> list[str]:
    found = []
    for section, names in sections.items():
        kind = _SECTIONS[section]
        for name in names:
            # A module of MindSpeed stands before its function.
            last = name.rpartition(".")[2] if section == "mindspeed" else name
            full = as_in_dump(f"{kind}.{last}")
            # What torch and torch.nn.functional share has the name of the latter, and its section.
            if full.partition(".")[0] == kind:
                found.append(full)
    return found


@functools.cache
def _own_names(as_in_dump: Callable[[str], Any]) -> frozenset[str]:
    return frozenset(_full_names(_read_sections(OWN_LIST), as_in_dump))
