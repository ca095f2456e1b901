"""Name the operation at fault, not the ones that suffer from it.

    two dumps ─► order ─► agreement ─► replay, noise ─► suspicion ─► causes ─► conclusion ─► text

The room has the name of its one public function, and can be called like it. What is in it is loaded
when it is first used: a comparison of runs that agree needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorprobe.system.callable_module import make_callable

if TYPE_CHECKING:
    from tensorprobe.blame.conclusion import Accused, Conclusion
    from tensorprobe.blame.run import blame

__all__ = ["Accused", "Conclusion", "blame"]

_HOMES = {"Accused": "conclusion", "Conclusion": "conclusion", "blame": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def _blame(*args: Any, **options: Any) -> Conclusion:
    from tensorprobe.blame.run import blame

    return blame(*args, **options)


make_callable(__name__, _blame)
