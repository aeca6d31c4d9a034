"""Machines, cells and strategies that the tests of predictions share."""

from dataclasses import replace
from typing import Any

from scaling.collectives.plan import Exchange, Stage, Update
from scaling.collectives.ring import ring
from scaling.prediction.measured import MeasuredCell
from scaling.prediction.strategy import Strategy
from topologies.machine import Device, Link, Machine
from topologies.model import Network, Topology

NUM_ELEMENTS = 10_000_000


def machine(num_gpus: int = 4, nvlink: float = 200e9, nodes: int = 1) -> Topology:
    """GPUs on an NVSwitch and on PCIe, and a NIC for each node."""
    devices = [
        Device("host0", "host_memory", bandwidth_bytes_per_s=400e9),
        Device("cpu0", "cpu", cores=16, reduce_bytes_per_s=5e9),
        Device("switch", "nvswitch"),
        Device("nic0", "nic", gpudirect=True),
    ]
    links = [
        Link("bus", "cpu0", "host0", "memory", 200e9, 1e-7),
        Link("cpu0-nic0", "cpu0", "nic0", "pcie", 25e9, 2e-7),
    ]
    for index in range(num_gpus):
        gpu = f"gpu{index}"
        made = Device(gpu, "gpu", "A GPU", reduce_bytes_per_s=500e9, type="gpu-type")
        devices.append(replace(made, bandwidth_bytes_per_s=1500e9))
        links.append(Link(f"{gpu}-switch", gpu, "switch", "nvlink", nvlink, 3e-7, type="nvlink-type"))
        links.append(Link(f"cpu0-{gpu}", "cpu0", gpu, "pcie", 25e9, 2e-7, type="pcie-type"))
    peers = (frozenset(f"gpu{index}" for index in range(num_gpus)),)
    latency_s = {"peer": 3e-6, "staged": 5e-6, "host": 5e-6, "network": 8e-6}
    own = Machine("example", tuple(devices), tuple(links), peers, latency_s)
    return Topology("example", own, nodes, Network("a network", 20e9, 5e-6) if nodes > 1 else None)


def cell(world_size: int, aggregator: str = "ring", **changes: Any) -> dict[str, Any]:
    """A cell under strong scaling of a global batch of 4096."""
    return {
        **{"kind": "iteration", "model_label": "net", "dataset_label": "data", "aggregator": aggregator},
        **{"aggregator_label": aggregator, "aggregator_parameters": {}, "exchanges": aggregator != "none"},
        **{"step": "eager", "device": "cuda", "scaling": "strong", "world_size": world_size},
        **{"local_batch": 4096 // world_size, "global_batch": 4096, "threads": 1, "peer_access": True},
        **{"tf32": False, "input_placement": "device", **changes},
    }


def strategy(values: dict[str, Any], num_elements: int = NUM_ELEMENTS) -> Strategy:
    """A ring, or the library's, of one bucket; nothing for `none`."""
    n = values["world_size"]
    stages: tuple[Stage, ...] = ()
    if values["aggregator"] != "none":
        native = values["aggregator"] == "all_reduce"
        stages = (Exchange(ring(n), num_elements, name=values["aggregator"], native=native),)
    return Strategy(values, (stages,), (num_elements,), (8,), (), num_elements)


def by_root(values: dict[str, Any]) -> Strategy:
    """The same with the root's update in place of every replica's."""
    own = strategy(values)
    update = Update("root", own.num_elements)
    return Strategy(values, own.buckets, own.bucket_elements, own.bucket_tensors, (update,), own.num_elements)


def measured(
    values: dict[str, Any], iteration_s: float, exchange_s: float | None = None, relative_sd: float = 0.01
) -> MeasuredCell:
    """What a results folder would hold of the cell."""
    phases = {"update_s": 1e-4}
    if exchange_s is not None:
        phases["exposed_comm_s"] = exchange_s
    return MeasuredCell(values, iteration_s, relative_sd, phases, "results/example")
