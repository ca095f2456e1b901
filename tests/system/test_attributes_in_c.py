"""What C files read of Python's objects is what is declared, and is there."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from tensorprobe.system.attributes_in_c import ATTRIBUTES, FOREIGN, MADE_IN_C

PACKAGE = Path(tensorprobe.__file__).parent


def names_in(file: str) -> set[str]:
    """Return the names that a C file makes objects of, to look attributes up by."""
    block = re.search(r"#define TEXTS\(X\)(.*?)\n#define", (PACKAGE / file).read_text(), re.S)
    assert block is not None
    return set(re.findall(r"X\((\w+)\)", block[1]))


def class_of(name: str) -> type:
    module, _, kind = name.partition(":")
    found: type = getattr(importlib.import_module(module), kind)
    return found


def attributes_of(kind: type) -> set[str]:
    """Return the attributes of a class, and those that its constructors set."""
    found = set(dir(kind))
    for base in kind.__mro__[:-1]:
        found |= set(getattr(base, "__slots__", ()))
        found |= set(re.findall(r"\bself\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(base)))
    return found


@pytest.mark.parametrize("file", ATTRIBUTES)
def test_a_c_file_reads_what_is_declared_and_nothing_else(file: str) -> None:
    declared = {name for names in ATTRIBUTES[file].values() for name in names}
    declared |= {name for names in FOREIGN[file].values() for name in names}
    assert names_in(file) == declared


def test_no_c_file_looks_attributes_up_in_another_way() -> None:
    looking = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.[ch]")
        if re.search(r"#define TEXTS\(X\)|AttrString\(|CallMethod\(", path.read_text())
    }
    assert looking == set(ATTRIBUTES)


@pytest.mark.parametrize("name", sorted({name for file in ATTRIBUTES.values() for name in file}))
def test_a_class_of_ours_has_what_c_reads_of_it(name: str) -> None:
    wanted = {each for file in ATTRIBUTES.values() for each in file.get(name, ())}
    assert wanted <= attributes_of(class_of(name))


@pytest.mark.parametrize("name", MADE_IN_C)
def test_every_slot_of_what_c_makes_is_set_by_it(name: str) -> None:
    kind = class_of(name)
    slots = {slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())}
    if dataclasses.is_dataclass(kind):
        slots |= {field.name for field in dataclasses.fields(kind)}
    assert slots
    assert slots <= {each for file in ATTRIBUTES.values() for each in file.get(name, ())}


def test_what_is_not_ours_has_what_c_reads_of_it() -> None:
    leaf = torch.ones(2, requires_grad=True)
    node: Any = (leaf * 2).grad_fn
    objects: dict[str, Any] = {
        "tensor": leaf,
        "node": node,
        "leaf node": node.next_functions[0][0],
        "module": torch.nn.ReLU(),
        "frame": sys._getframe(),
        "lock": threading.RLock(),
        "class": torch.nn.ReLU,
        "named result": torch.ones(2).max(0),
    }
    for groups in FOREIGN.values():
        for what, names in groups.items():
            if what != "no attribute":
                assert [name for name in names if not hasattr(objects[what], name)] == [], what
