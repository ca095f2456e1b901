"""Rows in, text and files out. No arithmetic."""
