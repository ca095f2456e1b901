"""Write the list of every function that is captured without one, for this torch.

python tests/capture/make_api_list.py     into the package; those of the older names link to it
"""

from __future__ import annotations

import torch

from tensorprobe.capture.api_list import OWN_LIST
from tensorprobe.capture.apis import ApiTable, as_in_dump
from tensorprobe.capture.collectives import _RECORDED
from tensorprobe.capture.operators import MAGIC_NAMES

SECTIONS = {"functional": "Functional", "tensor": "Tensor", "torch": "Torch", "_VF": "VF"}
HEADER = """\
# The functions that are captured, by the names that they have in a dump.
#
# In the package of an older tool this file may be edited, as it was there: a line that is taken
# out, or has a # in front, leaves its function out; a line that is added captures a function that
# is not captured by itself. Anywhere else copy it, edit the copy, and name that in config.json:
# "api_list": "./support_wrap_ops.yaml".
"""
FOOTER = """
# Functions of torch_npu that torch itself tells of are captured without being named. As soon as one
# is named here, only those that are named are captured: take the # away, or add others.
torch_npu:
#  - npu_scaled_masked_softmax
"""


def all_names() -> set[str]:
    """Return the names of all functions that calls can have, but for collectives."""
    overridable = torch.overrides.get_overridable_functions().values()
    functions = [function for known in overridable for function in known]
    # Some that torch tells of, such as those that make a tensor of nothing, cannot be overridden.
    for space in (torch._C._VariableFunctions, torch._C._nn, torch._C._linalg, torch.Tensor):
        functions += [
            function
            for name in dir(space)
            if not name.startswith("_") and callable(function := getattr(space, name))
        ]
    # Some have several names, which are equal as functions: a table of its own for each.
    found = {api.full_name for function in functions if (api := ApiTable().look_up(function))}
    operators = {f"Tensor.{name}" for name in MAGIC_NAMES}
    return {as_in_dump(name) for name in found | operators}


def text_of_list() -> str:
    names = all_names()
    lines = [HEADER]
    for section, kind in SECTIONS.items():
        own = sorted(name.partition(".")[2] for name in names if name.startswith(f"{kind}."))
        lines += [f"\n{section}:\n", *(f"  - {name}\n" for name in own)]
    lines += ["\ndistributed:\n", *(f"  - {name}\n" for name in sorted(_RECORDED))]
    return "".join([*lines, FOOTER])


if __name__ == "__main__":
    OWN_LIST.write_text(text_of_list())
