"""The import names of api_accuracy_checker, answered by tensorprobe.

`import api_accuracy_checker.dump` captures one iteration; the scripts in `run_ut` check its calls.
"""
