"""How long schedules of many ranks take to make and verify: `benchmarks/verify_speed.py [RANKS] [--all]`.

Prints CSV: CPU seconds of this process (steps made and proved) and the peak of its memory so far; then those
of whole commands, with `--all` of `scaling verify --all` too, whose processes are counted together.
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
WHOLE = ("ring", "tree", "halving_doubling", "stripes")


def main() -> None:
    """Prints one line a collective."""
    world_size = next((int(word) for word in sys.argv[1:] if word.isdecimal()), 1024)
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
    commands: list[tuple[str, int, tuple[str, ...]]] = [
        (f"scaling verify {name}", world_size, (name, "--world-sizes", str(world_size))) for name in WHOLE
    ]
    commands += [("scaling verify --all", 64, ("--all",))] if "--all" in sys.argv else []
    for name, size, words in commands:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "scaling", "verify", *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{shown.stdout.strip()},{name},{size},{cpu_s:.3f},{after.ru_maxrss / 1000:.0f}", flush=True)


if __name__ == "__main__":
    main()
