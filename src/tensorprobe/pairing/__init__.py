"""Pair two dumps of any tools: ranks, calls, values. Nothing pairs anywhere else.

ranks     the dumps of one rank and step of both runs
partners  names of calls ─► names of their partners, by name or in the order of the run
            run_order: parameter gradients stand behind their module's backward call
            wrappers:  what DDP, FSDP, torch.compile and checkpointing put into a module's path
            align:     a longest common subsequence
gradient_order   which gradients of a call two tools both record, and where
    ├► match       a stream of calls with pairs of flat values (compare)
    └► call_pairs  records of both runs in the order of the run (blame)
mapping   the pairs that a user names
"""
