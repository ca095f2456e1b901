"""Name the operation at fault, not the ones that suffer from it."""
