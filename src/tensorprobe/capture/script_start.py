"""What `tensorprobe run` gives Python in place of a script: `python script_start.py train.py …`.

`python -m` would have torch, and all that it needs, looked for in the working directory first,
where a project may have a `queue.py` of its own. So this is a file, and imports nothing before
Python looks where it would for the script.
"""

import os
import sys

if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("--local-rank="):
        # `torch.distributed.launch` puts it before all arguments, of which the script is the first.
        sys.argv[1:3] = sys.argv[2:0:-1]
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        # Python has put the folder of this file there.
        sys.path[0] = os.path.dirname(os.path.realpath("".join(sys.argv[1:2])))
    from tensorprobe.capture.script import main

    main()
