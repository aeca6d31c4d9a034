"""What the probe's samples say of each device and link of a detected machine.

A direction of a PCIe link is a direction of the copies of pinned memory; of GPUs that share it the fastest
counts. A peer copy is divided by the NVLinks of the pair. Where copies of all GPUs at once are slower than
those of one, they have met the host memory's limit, and their sum is it; elsewhere it is at least what all
cores move, or all GPUs together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.measure.probe.cases import BYTES_MOVED, PRECISIONS
from scaling.measure.probe.series import Observed, Series, together
from topologies.model import Topology

SATURATED_RATIO = 0.9
"""Copies at once are held up by one another where each gets less than this part of its speed alone."""

Figures = dict[str, dict[str, Observed]]  # id of a device or link -> figure of its type -> value

THERE, BACK = "bandwidth_bytes_per_s", "back_bytes_per_s"


@dataclass(frozen=True)
class ProbeReader:
    """`gpu_ids`: the device of each rank; empty where ranks are processes on the CPU."""

    topology: Topology
    gpu_ids: Sequence[str]
    series: Series

    def devices(self) -> Figures:
        return {**self._gpus(), **self._processors(), **self._memories()[0]}

    def links(self) -> Figures:
        return {**self._pcie(), **self._nvlinks(), **self._memories()[1]}

    def _gpus(self) -> Figures:
        figures: Figures = {}
        for rank, id_ in enumerate(self.gpu_ids):
            moved = self.series.first("device_copy", ranks=(rank,))
            added = self.series.first("device_sum", ranks=(rank,))
            if moved and added:
                rate = moved.rate.times(BYTES_MOVED["device_copy"])
                figures[id_] = {
                    **self._products((rank,)),
                    "bandwidth_bytes_per_s": rate.called("a copy inside a GPU, bytes read plus written"),
                    "reduce_bytes_per_s": added.rate.called("one buffer added to another inside a GPU"),
                }
        return figures

    def _processors(self) -> Figures:
        one_thread = self.series.first("host_sum", num_threads=1)
        if one_thread is None:
            return {}
        rate = one_thread.rate.called("one thread adds a buffer to another")
        cpus = self.topology.machine.of_kind("cpu")
        products = {} if self.gpu_ids else self._products(self._everyone, 1 / len(cpus))
        return {cpu.id: {"reduce_bytes_per_s": rate, **products} for cpu in cpus}

    def _products(self, ranks: tuple[int, ...], share: float = 1.0) -> dict[str, Observed]:
        figures = {}
        for precision in PRECISIONS:
            series = self.series.first(f"product_{precision}", ranks=ranks)
            if series is not None and series.product_rate is not None:
                figures[f"{precision}_flops_per_s"] = series.product_rate.times(share * len(ranks))
        return figures

    def _pcie(self) -> Figures:
        machine = self.topology.machine
        figures: Figures = {}
        for rank, id_ in enumerate(self.gpu_ids):
            down = self.series.first("h2d", ranks=(rank,), memory="pinned")
            up = self.series.first("d2h", ranks=(rank,), memory="pinned")
            if down and up:
                to_gpu = down.bandwidth.called("pinned memory to one GPU at a time")
                to_host = up.bandwidth.called("one GPU at a time to pinned memory")
                for link, forward in machine.route(machine.nearest(id_, "host_memory"), id_):
                    if link.kind == "pcie":
                        directions = _directions(to_gpu, to_host, forward=forward)
                        # A link that several GPUs share gives at least what the fastest of them alone gets.
                        known = figures.get(link.id, directions)
                        figures[link.id] = {
                            name: max(known[name], value, key=lambda figure: figure.value)
                            for name, value in directions.items()
                        }
        return figures

    def _nvlinks(self) -> Figures:
        figures: Figures = {}
        unprobed = {gpu.id for gpu in self.topology.machine.of_kind("gpu")} - set(self.gpu_ids)
        for link in self.topology.machine.links:
            if link.kind == "nvlink" and not unprobed & {link.first, link.second}:
                there, back = self._copies(link.first, link.second), self._copies(link.second, link.first)
                if there and back:
                    share = 1 / link.count
                    figures[link.id] = _directions(there.times(share), back.times(share), forward=True)
        return figures

    def _copies(self, source: str, target: str) -> Observed | None:
        copies = []
        for series in self.series.where("peer_copy"):
            ends = [self.gpu_ids[rank] for rank in series.example.ranks]
            wanted = zip((source, target), ends, strict=True)
            if all(want == end or want not in self.gpu_ids for want, end in wanted):
                copies.append(series)
        observed = together(copies, lambda series: series.bandwidth)
        return observed and observed.called("copies into the memory of one other GPU at a time, of one link")

    def _memories(self) -> tuple[Figures, Figures]:
        machine = self.topology.machine
        memories = [memory.id for memory in machine.of_kind("host_memory")]
        devices: Figures = {}
        links: Figures = {}
        for memory in memories:
            near = [id_ for id_ in self.gpu_ids if machine.nearest(id_, "host_memory") == memory]
            both, of_cores = self._at_once("h2d_d2h", near), self._of_all_cores(len(memories))
            whole = _limit(None if both is None else (both[0].times(2), both[1]), of_cores)
            if whole is None:
                continue
            devices[memory] = {"bandwidth_bytes_per_s": whole}
            link, forward = machine.route(machine.nearest(memory, "cpu"), memory)[0]
            up, down = (_limit(self._at_once(name, near), whole) for name in ("d2h", "h2d"))
            if up and down:
                both_ways = _directions(up, down, forward=forward)
                links[link.id] = {THERE: whole} if up.value == down.value else both_ways
        return devices, links

    def _of_all_cores(self, num_memories: int) -> Observed | None:
        """Bytes that they read and write in one memory, copying or adding."""
        rates = []
        for name, verb in (("host_copy", "copy"), ("host_sum", "add")):
            for series in self.series.where(name, num_threads=None, ranks=self._everyone):
                moved = series.rate.times(BYTES_MOVED[name] * len(self._everyone) / num_memories)
                rates.append(moved.called(f"all cores {verb} at once, bytes read plus written"))
        return max(rates, key=lambda rate: rate.value, default=None)

    @property
    def _everyone(self) -> tuple[int, ...]:
        return max((series.example.ranks for series in self.series.all()), key=len, default=())

    def _at_once(self, operation: str, gpus: Sequence[str]) -> tuple[Observed, bool] | None:
        """What these GPUs copy together while all do; and whether they hold one another up."""
        if not gpus or len(self.gpu_ids) < len(self.topology.machine.of_kind("gpu")):
            return None  # GPUs that did not take part share the memory, too
        copies = self.series.where(operation, memory="pinned")
        alone = together(
            [series for series in copies if len(series.example.ranks) == 1], lambda series: series.bandwidth
        )
        at_once = next((series for series in copies if series.example.ranks == self._everyone), None)
        if alone is None or at_once is None:
            return None
        each = at_once.bandwidth
        if each.num_bytes != alone.num_bytes:  # small copies stay in the processor's cache
            return None
        is_saturated = len(self._everyone) > 1 and each.value < SATURATED_RATIO * alone.value
        together_ = "where they hold one another up" if is_saturated else "the most that was seen"
        return each.times(len(gpus)).called(f"copies of all GPUs at once, {together_}"), is_saturated


def _directions(there: Observed, back: Observed, *, forward: bool) -> dict[str, Observed]:
    return {THERE: there, BACK: back} if forward else {THERE: back, BACK: there}


def _limit(at_once: tuple[Observed, bool] | None, otherwise: Observed | None) -> Observed | None:
    """The sum of copies that hold one another up; else the larger of it and another figure."""
    if at_once is None:
        return otherwise
    total, is_saturated = at_once
    return total if is_saturated or otherwise is None or total.value > otherwise.value else otherwise
