"""What each system's strategy would cost on the machine of arXiv 1608.07249, simulated, without that machine:

    python benchmarks/dual_k80_presets.py

FCN-R's gradient, float32, on two Tesla K80 boards (topologies/dual-k80.yaml, dual-k80-one-link.yaml): the
stages of aggregation and update that the preset states, each priced by the simulator. The last column is the
step's speed over one GPU if forward and backward take the 100 ms a batch that the paper states for FCN-R,
divided by the GPUs; nothing overlaps. docs/background/dual-k80.md compares it with the paper.
"""

from __future__ import annotations

from itertools import pairwise, product

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Exchange, Stage, simulate_plan
from topologies.model import Topology
from topologies.schema import load

WIDTHS = (784, 2048, 4096, 1024, 10)
CORES = 16  # of the machine; all of them sum, a share a rank
MACHINES = ("dual-k80", "dual-k80-one-link")
COMPUTE_S = 0.100  # arXiv 1608.07249, section 4.3: a batch of FCN-R on one GPU
PRESETS: dict[str, dict[str, object]] = {
    "cntk": {},
    "cntk_32bit": {},
    "mxnet_device": {},
    "mxnet_local": {},
    "mxnet_tree": {},
    "caffe": {"gpus_per_board": 2},
    "caffe_nccl": {},
    "torch_dpt": {},
    "torch_cpu": {},
    "tensorflow": {},
    "tf_replicated": {},
    "tf_spec": {},
}


def fcn_r_layout() -> BucketLayout:
    """Weights and biases of 784-2048-4096-1024-10, in torch's order."""
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for index, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        tensors += [(f"{index}.weight", (outputs, inputs)), (f"{index}.bias", (outputs,))]
    return BucketLayout.of(tensors)


def arithmetic(stages: list[Stage], topology: Topology, world_size: int) -> str:
    """`reduce 15.6 = 56.8 MB x 2 steps`: each stage's milliseconds and what it moves."""
    priced = simulate_plan(stages, topology, world_size, threads=CORES // world_size)
    parts: dict[str, str] = {}
    for name, seconds in priced.seconds_by_name.items():
        same = [(s, p) for s, p in zip(stages, priced.stages, strict=True) if p.name == name]
        parts[name] = f"{name} {seconds * 1e3:.2f}"
        exchanges = [(s, p.simulation) for s, p in same if isinstance(s, Exchange) and p.simulation]
        if exchanges:
            num_steps = sum(len(stage.schedule.steps) for stage, _ in exchanges)
            simulation = max(
                (simulated for _, simulated in exchanges), key=lambda simulated: simulated.seconds
            )
            busiest = simulation.busiest_resource or "nothing"
            moved = sum(simulated.bytes_per_resource.get(busiest, 0.0) for _, simulated in exchanges)
            sums_s = sum(simulated.reduce_seconds for _, simulated in exchanges)
            parts[name] += (
                f" ({num_steps} step{'s' if num_steps > 1 else ''}; busiest {busiest.partition('/')[2]}: "
                f"{moved / 1e6:.1f} MB at {topology.capacity_bytes_per_s(busiest) / 1e9:.0f} GB/s"
                f"{f'; sums {sums_s * 1e3:.2f}' if sums_s else ''})"
            )
    return " + ".join(parts.values())


def simulated_s(world_size: int, machine: str = "dual-k80") -> dict[str, float]:
    """Seconds of aggregation and update of every preset, cheapest first."""
    layout, topology = fcn_r_layout(), load(machine)
    seconds = {
        name: simulate_plan(
            create(name, options).stages(layout, world_size),
            topology,
            world_size,
            threads=CORES // world_size,
        ).seconds
        for name, options in PRESETS.items()
    }
    return dict(sorted(seconds.items(), key=lambda item: item[1]))


def main() -> None:
    """Prints one line a preset and number of GPUs."""
    layout = fcn_r_layout()
    print(f"simulated: {layout.num_elements * 4 / 1e6:.1f} MB of gradient; milliseconds")
    for machine, world_size in product(MACHINES, (2, 4)):
        topology = load(machine)
        print(f"\n{machine}: {world_size} GPUs, cheapest first")
        for name, seconds in simulated_s(world_size, machine).items():
            speedup = COMPUTE_S / (COMPUTE_S / world_size + seconds)
            text = arithmetic(create(name, PRESETS[name]).stages(layout, world_size), topology, world_size)
            print(f"{name:14} {seconds * 1e3:7.1f}  speed-up {speedup:4.2f}  = {text}")


if __name__ == "__main__":
    main()
