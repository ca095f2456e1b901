"""The place of support_wrap_ops.yaml, which may be edited here."""
