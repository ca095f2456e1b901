"""Write a script that makes one call again with torch alone, and the tensors that it loads.

arguments ─► script_text: source ─┐
how the call is made ─────────────┼─► DIR/repro.py      DIR/tensors.pt
script_parts: the code ───────────┘
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import torch

from tensorprobe.replay.rebuild import RebuiltCall
from tensorprobe.replay.script_text import ArgumentSource
from tensorprobe.rounding import tolerances
from tensorprobe.store.tensor_bytes import write_whole_file
from tensorprobe.system.new_file import new_file

__all__ = ["PARTS_OF_A_CHECK", "PARTS_OF_A_PROOF", "KeptTensors", "Script", "source_of_value"]

_MAKING = ("arguments", "script_parts/repeat")
PARTS_OF_A_CHECK = (*_MAKING, "chosen_places", "script_parts/draws", "script_parts/check")
PARTS_OF_A_PROOF = (*_MAKING, "script_parts/prove")

# How far off is too far is asked of one file; a script holds the numbers that were in use.
_TOLERANCE = re.compile(r"\btolerances\.([A-Z_]+)")
_IMPORTS_OF_USERS = """\
try:
    {imports}
except ImportError as err:
    print(f"{{err}}; its folder must be in PYTHONPATH", file=sys.stderr)
    sys.exit(2)
"""
_CALL = '''\
def make(given, dtype, device):
    """Make the call."""
    return {function}({arguments})


CALL = Call(
    make=make,
{settings})
'''
_MAIN = """
if __name__ == "__main__":
    sys.exit({main}(sys.argv[1] if len(sys.argv) > 1 else {device!r}))
"""


class KeptTensors:
    """The tensors of a script by their names, and the arguments that they stand in."""

    def __init__(self) -> None:
        self.named: dict[str, torch.Tensor] = {}
        # By the identity of the tensor, which `named` keeps alive.
        self._source: dict[int, str] = {}
        self._arguments = ArgumentSource(self._given, lambda dtype: f"dtype({dtype})")

    def keep(self, name: str, tensor: torch.Tensor, *, wants_gradient: bool = False) -> None:
        """Keep a tensor; as an argument it is loaded by its name."""
        self.named[name] = tensor
        self._source[id(tensor)] = f"given({name!r}{', True' if wants_gradient else ''})"

    def arguments_of(self, call: RebuiltCall) -> str:
        """Return the arguments of a call as source; tensors that are not kept yet are inputs.

        Raises:
            RebuildError: one of them cannot be written down.
        """
        return self._arguments.call(call.args, call.kwargs)

    def _given(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self._source:
            count = sum(name.startswith("input.") for name in self.named)
            self.keep(f"input.{count}", tensor, wants_gradient=tensor.requires_grad)
        return self._source[id(tensor)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script.

    Attributes:
        says: its docstring; nothing of a file stands in it but what `name_in_docstring` gave.
        parts: the modules that it consists of.
        function: the path of the function.
        arguments: its arguments as source.
        settings: the other fields of `Call`, as source.
        more: what stands behind the call, as source.
        main: what is called with the device's name, as source.
        device: the one that is meant if none is given.
        imports: the modules that hold the user's own functions.
    """

    says: str
    parts: Sequence[str]
    function: str
    arguments: str
    settings: Mapping[str, str]
    more: str
    main: str
    device: str
    imports: Sequence[str] = field(default=())

    def source(self) -> str:
        """Return the text of the script."""
        imported, bodies = _read_parts(self.parts)
        users = "\n    ".join(f"import {module}" for module in self.imports)
        settings = "".join(f"    {key}={text},\n" for key, text in self.settings.items())
        pieces = [
            f'"""{self.says}"""\n',
            "from __future__ import annotations\n",
            "\n".join(imported) + "\n",
            _IMPORTS_OF_USERS.format(imports=users) if users else "",
            *bodies,
            _CALL.format(function=self.function, arguments=self.arguments, settings=settings),
            self.more,
            _MAIN.format(main=self.main, device=self.device),
        ]
        return "\n".join(piece for piece in pieces if piece)

    def write(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
        """Write the script and its tensors into a folder, and return the script.

        Raises:
            OSError: they cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        kept = {name: _alone(tensor.detach().cpu()) for name, tensor in tensors.items()}
        with (
            new_file(folder / "tensors.pt") as descriptor,
            os.fdopen(os.dup(descriptor), "wb") as file,
        ):
            torch.save(kept, file)
        path = folder / "repro.py"
        write_whole_file(path, [self.source().encode()])
        return path


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with memory of its own: of a view torch would write all of its base."""
    is_whole = tensor.layout is torch.strided and not tensor._is_zerotensor()
    is_whole = is_whole and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if is_whole else tensor.clone()


def source_of_value(value: object) -> str:
    """Return the source of a setting: a number, a dtype, or nested ones of these.

    Raises:
        RebuildError: it has none.
    """
    if isinstance(value, Mapping):
        items = (f"{source_of_value(key)}: {source_of_value(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    return ArgumentSource(lambda tensor: "None").write(value)


def _read_parts(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what modules import of Python and torch, and what stands behind their `__all__`."""
    imported: dict[str, None] = {}
    bodies = []
    root = resources.files("tensorprobe.replay")
    for name in names:
        text = root.joinpath(f"{name}.py").read_text(encoding="utf-8")
        end = 0
        for node in ast.parse(text).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                source = ast.unparse(node)
                if not source.startswith(("from tensorprobe", "from __future__")):
                    imported[source] = None
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                end = node.end_lineno or 0
        bodies.append("\n".join(text.splitlines()[end:]).strip("\n") + "\n\n")
    used = sorted(set(_TOLERANCE.findall("\n".join(bodies))))
    if used:
        imported["from types import SimpleNamespace"] = None
        values = ", ".join(f"{name}={getattr(tolerances, name)!r}" for name in used)
        bodies.insert(0, f"tolerances = SimpleNamespace({values})\n\n")
    return sorted(imported), bodies
