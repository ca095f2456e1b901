"""What `tensorprobe run` gives Python in place of a script, or of a module.

    python script_start.py train.py …
    python -m tensorprobe.script_start -m package.train …

`python -m` would have torch, and all that it needs, looked for in the working directory first,
where a project may have a `queue.py` of its own. So for a script this is a file, and imports
nothing before Python looks where it would for the script.
"""

import os
import sys

if __name__ == "__main__":
    # A module is found by its name, and has a spec.
    is_file = __spec__ is None
    if is_file and sys.argv[1:] and sys.argv[1].startswith("--local-rank="):
        # `torch.distributed.launch` puts it before all arguments, of which the script is the first.
        sys.argv[1:3] = sys.argv[2:0:-1]
    if is_file and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        # Python has put the folder of this file there.
        sys.path[0] = os.path.dirname(os.path.realpath("".join(sys.argv[1:2])))
    from tensorprobe.system.ctrl_c import end_at_once

    # Until the script begins nobody is to see where in us it was interrupted.
    end_at_once()
    if "TENSORPROBE_ONLINE" in os.environ:
        from tensorprobe.online.script import main
    else:
        from tensorprobe.capture.script import main

    # The new __main__ replaces this one, whose code is still running.
    _this = sys.modules["__main__"]
    main()
