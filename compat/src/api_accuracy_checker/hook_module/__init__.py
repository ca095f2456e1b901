"""The list of functions that are captured, support_wrap_ops.yaml, which may be edited here."""
