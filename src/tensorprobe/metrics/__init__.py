"""Numbers about arrays: one compiled file, and numpy code of the same meaning."""
