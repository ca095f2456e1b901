"""Check every recorded call without a second machine.

    open_dump ─► rebuild ─► run on the device and, one precision up, on the CPU ─► judge ─► results

A call is rebuilt from its record: the function by its name, the arguments from what was written of
them, the tensors from their data or at random within the recorded range.
"""

from __future__ import annotations

__all__: list[str] = []
