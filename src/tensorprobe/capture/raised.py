"""What is recorded of a call that raised: what it was given, and no output, not even null.

torch's checkpoint ends a recomputation so, in the middle of the last call whose result it wants; as
does a call of the user's that fails, whose inputs are what one wants to see then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from tensorprobe.capture.describe import Drafted

if TYPE_CHECKING:
    from tensorprobe.capture.session import Session

__all__ = ["add_raised"]


def add_raised(
    session: Session,
    name: str,
    inputs: tuple[Drafted, ...] | None,
    kwargs: Mapping[str, Drafted] | None,
) -> None:
    """Record a call out of which an exception is on its way to the user.

    Args:
        session: where it is recorded.
        name: of the call.
        inputs: what it was given; None if that is not wanted: then it has a place and no record.
        kwargs: what it was given by name.
    """
    recorder = session.recorder
    try:
        with torch._C.DisableTorchFunction():
            parent = session.current_module
            if inputs is None:
                session.leave(name, parent)
                return
            recorder.add(
                name,
                inputs=inputs,
                kwargs=kwargs,
                is_recompute=session.recomputation.is_running(),
                stack=session.read_stack(),
                parent=parent,
            )
    except Exception as err:  # noqa: BLE001 - counted and told by the recorder
        recorder.fail(name, err)
