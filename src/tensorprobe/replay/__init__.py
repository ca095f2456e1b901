"""Make a recorded call again without trusting the file that describes it.

    name ─► functions: a list made from torch ─┐
    values ─► bounds ─► rebuild: arguments ────┴─► the call, made in a worker process with limits

`functions` and `users` choose what may be called, `bounds` how much of everything there may be,
`sandbox` what a process that does it may touch, `pool` outlives whatever happens to that process.
"""
