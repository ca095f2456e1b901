"""What the older import names have in common; nothing here is meant to be imported by hand.

msprobe, ptdbg_ascend, api_accuracy_checker    import names, nothing else
  └► tensorprobe_compat                        translates arguments
       └► tensorprobe                          does the work
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
