"""What is known of torch's operations: how their names are spelled, and what holds of each.

a call's name ─► spelling: which operation ─► facts: one list of each fact, asked with `in`
"""
