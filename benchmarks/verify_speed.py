"""How long schedules of many ranks take to make and verify: `python benchmarks/verify_speed.py [RANKS]`.

Prints CSV: CPU seconds of this process (steps made and proved) and the peak of its memory so far.
Two commits are compared by running the script in turns in a checkout of each (`PYTHONPATH=CHECKOUT`).
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

import scaling
from scaling.collectives.listing import schedule
from scaling.collectives.verify import verify

COLLECTIVES = (
    "tree",
    "halving_doubling",
    "binary_blocks",
    "recursive_doubling",
    "double_binary_tree",
    "stripes",
    "ring",
)


def main() -> None:
    """Prints one line a collective."""
    world_size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    checkout = Path(scaling.__path__[0]).parent
    shown = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
    )
    print("commit,collective,world_size,cpu_s,peak_mb")
    for name in COLLECTIVES:
        start_s = time.process_time()
        verify(schedule(name, world_size))
        cpu_s = time.process_time() - start_s
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000  # kilobytes on Linux
        print(f"{shown.stdout.strip()},{name},{world_size},{cpu_s:.3f},{peak_mb:.0f}", flush=True)


if __name__ == "__main__":
    main()
