"""`PtdbgDispatch`, the online comparison as the older tool has it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tensorprobe import OnlineCheck
from tensorprobe.system.standard_streams import complain

__all__ = ["PtdbgDispatch"]


class PtdbgDispatch(OnlineCheck):
    """Check every operator of a block against the CPU while the block runs.

    Args:
        dump_mode: whose data are kept: `all`, `list`, `auto` (those that miss) or `OFF`.
        api_list: the operators of `list`, by names as in `dir(torch.ops.aten)`.
        debug: tell every operator.
        dump_path: the folder in which a folder of results is made.
        tag: a part of its name.
        process_num: how many threads check in the background; at most a quarter of the cores.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        dump_mode: str = "OFF",
        api_list: Sequence[str] | None = None,
        debug: bool = False,
        dump_path: str | os.PathLike[str] | None = None,
        tag: str | None = None,
        process_num: int = 0,
    ) -> None:
        is_list = str(dump_mode).lower() == "list"
        if api_list and not is_list:
            complain(f"api_list goes with dump_mode='list'; with {dump_mode!r} it has no effect")
        super().__init__(
            dump_mode,
            # There is no default: what is not given is told by its name.
            dump_path,  # type: ignore[arg-type]
            api_list if is_list else None,
            tag,
            process_num,
            debug=debug,
            # The older tool's table has them of every output.
            statistics=True,
            older_rule=True,
        )
