"""How long schedules of many GPUs take to make and price: `python benchmarks/simulate_speed.py [NODES]`."""

import resource
import sys
import time
from collections.abc import Callable

from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.hierarchical import hierarchical
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.simulate import simulate
from scaling.collectives.tree import double_binary_tree, tree
from topologies.schema import cluster, load

NODE = "hgx-h200-x2-infiniband"
RANKS_PER_NODE = 8
NUM_BYTES = 100e6
RUNS = 5

COLLECTIVES: dict[str, Callable[[int], Schedule]] = {
    "hierarchical": lambda n: hierarchical(n, RANKS_PER_NODE),
    "hierarchical leader": lambda n: hierarchical(n, RANKS_PER_NODE, "leader"),
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "double_binary_tree": lambda n: double_binary_tree(n, num_chunks=8),
}


def main() -> None:
    """Prints one line a collective: the median, least and most of its runs."""
    num_nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    world_size = num_nodes * RANKS_PER_NODE
    print(f"{num_nodes} x {RANKS_PER_NODE} GPUs, {RUNS} runs   median s    least     most    steps   priced")
    for name, schedule in COLLECTIVES.items():
        walls_s = []
        for _ in range(RUNS):
            topology = cluster(load(NODE), num_nodes)  # nothing found by an earlier run
            start_s = time.perf_counter()
            simulation = simulate(schedule(world_size), topology, NUM_BYTES)
            assert simulation.seconds > 0
            walls_s.append(time.perf_counter() - start_s)
        low_s, *_, high_s = sorted(walls_s)
        print(
            f"{name:28} {sorted(walls_s)[RUNS // 2]:8.2f} {low_s:8.2f} {high_s:8.2f} "
            f"{len(simulation.step_seconds):8} {len(simulation.prices):8}",
            flush=True,
        )
    print(f"peak of memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")


if __name__ == "__main__":
    main()
