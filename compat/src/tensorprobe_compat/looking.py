"""`parse` of ptdbg_ascend: what a dump holds of a call, and where that was made."""

from __future__ import annotations

import os

__all__ = ["parse"]


def parse(pkl_file: str | os.PathLike[str], module_name_prefix: str) -> None:
    """Print the stack and the statistics of the calls whose names begin like this.

    Args:
        pkl_file: the pkl of a dump.
        module_name_prefix: `Torch_norm_1_forward`; a part of it will do.
    """
    from tensorprobe.cli import main
    from tensorprobe.names import ptdbg_pattern

    main(["show", "--", os.fspath(pkl_file), ptdbg_pattern(module_name_prefix)])
