"""Name the operation at fault, not the ones that suffer from it.

    two dumps ─► order ─► agreement ─► replay, noise ─► suspicion ─► causes ─► conclusion ─► text

The room has the name of its one public function, and can be called like it.
"""

from __future__ import annotations

from tensorprobe.blame.conclusion import Accused, Conclusion
from tensorprobe.blame.run import blame
from tensorprobe.callable_room import make_callable

__all__ = ["Accused", "Conclusion", "blame"]

make_callable(__name__, blame)
