"""How far off is too far: what rounding, inputs and the whole run excuse, and every tolerance.

    data         replayed, shaken inputs ─► floor ─► Floor: the bound of each element
    statistics   distance ─► gain ─► explain ─► Limit: terms, each with its reason ─► Unexplained
                    └──────► peers: the same operation earlier in the run
    one result   tensor_limit, noisy_runs: what a kernel may be off from the precise result

Every number that somebody may want to change stands in `tolerances`, and nowhere else.
"""
