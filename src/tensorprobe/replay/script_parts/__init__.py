"""What stands in the scripts that repeat a call: modules that need torch and nothing else.

    repeat: make the call, also more precisely ─┬► check, draws: judge it as the pre-check does
                                                └► prove: hold it against two recorded runs

`replay.script` copies their text behind their `__all__` into a script; the names that one of them
imports from another are there already. So the code of a script is read, typed and tested as any.
"""
