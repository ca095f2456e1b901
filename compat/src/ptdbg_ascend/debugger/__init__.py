"""A place from which scripts import by its whole name."""
