"""How long schedules of many ranks take to make and verify: `python benchmarks/verify_speed.py [RANKS]`."""

import resource
import sys
import time

from scaling.collectives.listing import schedule
from scaling.collectives.verify import verify

COLLECTIVES = (
    "tree",
    "halving_doubling",
    "binary_blocks",
    "recursive_doubling",
    "double_binary_tree",
    "ring",
)


def main() -> None:
    """Prints one line a collective; the peak of the memory is that of the process so far."""
    world_size = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    print(f"{world_size} ranks    wall s    CPU s   peak MB")
    for name in COLLECTIVES:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        verify(schedule(name, world_size))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000  # kilobytes on Linux
        print(f"{name:20} {wall_s:8.2f} {cpu_s:8.2f} {peak_mb:8.0f}", flush=True)


if __name__ == "__main__":
    main()
