"""Predicts cells: computation, exchange, and what of the exchange is hidden.

Nothing here is measured: every result says so (`simulated`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scaling.errors import PredictionError, ScheduleError
from scaling.prediction.calibration import ALONE_SD, Calibration
from scaling.prediction.compute import Computed, ComputeModel
from scaling.prediction.estimate import NOTHING, PredictedValue, beyond, total
from scaling.prediction.measured import MeasuredCell
from scaling.prediction.overlap_fit import (
    HOOK_S,
    OverlapFit,
    OverlappedCell,
    exposed,
    fit_left_overs,
    fit_slowdowns,
)
from scaling.prediction.strategy import Machinery, Strategy, Term, by_host, steps_of_exchange, strategy_key
from scaling.prediction.terms import (
    all_reach,
    block_terms,
    ddp_terms,
    divide_term,
    input_copy,
    of_other_device,
    require_it_runs,
    terms_of,
    transport_of,
    update_terms,
)
from scaling.prediction.unseen import WAIT_SD, Unseen, links_of, waiting_ratio
from topologies.errors import TopologyError

BETWEEN_GPUS = (
    *("native", "native_host", "peer_memory", "peer_memory_captured"),
    *("sends", "sends_host", "host_memory"),
)
"""Kinds of terms that pass links between GPUs."""

UNKNOWN_PEERS = (
    "whether GPUs access each other's memory is unknown: pairs that are not known to do so are taken to go "
    "through host memory, which is slower; say peer_access in the machine file, or compare with "
    "--what-if peer_access=on"
)

BY_LIBRARY = ("native", "native_host", "gpu_work")  # kinds of terms of a library's own all-reduce


@dataclass(frozen=True)
class PredictedTerm:
    """A calibrated term; seconds, of these what does not depend on the bytes; a library's algorithm."""

    name: str
    kind: str
    seconds: float
    choice: str = ""
    latency_s: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """A cell that was not measured but simulated. Times in seconds."""

    cell: Mapping[str, Any]  # its independent variables
    topology: str  # the machine's name
    iteration: PredictedValue | None  # the step; None where no computation is known
    compute: PredictedValue | None  # of that, the computation without exchange
    exchange: PredictedValue  # aggregation and updates elsewhere than on every replica
    exposed_exchange: PredictedValue  # of that, what the backward pass does not hide
    terms: tuple[PredictedTerm, ...] = ()  # what the exchange consists of
    transport: str = ""  # of the bytes
    busiest: str | None = None  # the resource that bounds the longest exchange
    notes: tuple[str, ...] = ()  # what was assumed or not known
    compute_notes: tuple[str, ...] = ()  # those of them on the computation
    remarks: tuple[str, ...] = ()  # those of them that assume nothing
    hidden_s: float = 0.0  # messages under the backward pass
    waiting: PredictedValue = NOTHING  # for the slowest of the ranks, beyond those that were measured
    simulated: bool = field(default=True, init=False)


@dataclass(frozen=True)
class Predictor:
    """Predictions on one machine, by measured steps without exchange and factors for each kind of work."""

    machinery: Machinery
    compute: ComputeModel | None = None
    calibration: Calibration = field(default_factory=Calibration)
    overlap: OverlapFit = field(default_factory=OverlapFit)
    unseen: Unseen = field(default_factory=Unseen)

    def exchange_only(self) -> Predictor:
        return Predictor(self.machinery, None, self.calibration, self.overlap)

    def fitted_overlap(self, known: Iterable[tuple[MeasuredCell, Strategy]]) -> OverlapFit:
        overlapped = [
            (cell, strategy)
            for cell, strategy in known
            if cell.cell["step"] == "overlapped" and cell.world_size > 1 and cell.cell.get("exchanges", True)
        ]
        parts = (self.machinery, self.compute, self.calibration)
        fit = fit_slowdowns(Predictor(*parts)._overlapped_steps(overlapped))
        return fit_left_overs(Predictor(*parts, fit)._overlapped_steps(overlapped), fit)

    def _overlapped_steps(self, known: Iterable[tuple[MeasuredCell, Strategy]]) -> Iterator[OverlappedCell]:
        for cell, strategy in known:
            try:
                predicted = self.predict(strategy)
            except (ScheduleError, TopologyError):
                continue  # more ranks than the machine file has
            if predicted.iteration is None:
                continue
            yield OverlappedCell(
                strategy_key(strategy),
                cell.cell.get("peer_access") is not False,
                all(term.kind in BY_LIBRARY for term in predicted.terms),
                cell.world_size,
                cell.iteration_s,
                predicted.iteration.value,
                predicted.hidden_s,
                predicted.compute.sd if predicted.compute else 0.0,
            )

    def predict(self, strategy: Strategy) -> Prediction:
        """TopologyError where the machine lacks what the cell needs, ScheduleError where it does not run."""
        cell, world_size = strategy.cell, int(strategy.cell["world_size"])
        topology = self.machinery.topology
        require_it_runs(strategy, topology)
        notes: list[str] = []
        computed = self._computed(cell, notes)
        compute_notes = tuple(notes)
        alone = world_size == 1 and not by_host(strategy)
        buckets, after = ([], []) if alone else self._terms(strategy, world_size)
        exchanges = [self._sum(strategy, terms, world_size, notes) for terms in buckets]
        exposed_part, hidden_s = total(exchanges), 0.0
        if cell["step"] == "overlapped" and buckets and computed is not None:
            exposed_part, hidden_s = self._exposed(strategy, buckets, computed, notes)
            if computed.without_ddp:
                after = [*after, *ddp_terms(strategy, self.machinery)]
        elif cell["step"] == "overlapped" and buckets:
            notes.append("no backward pass is known: nothing of the exchange is taken as hidden")
        if computed and computed.waits_s and exposed_part.value:
            shown_s = max(0.0, exposed_part.value - computed.waits_s)
            exposed_part = replace(exposed_part, value=shown_s)
            notes.append("the step waits for its loader, which goes on during the exchange")
        after = [*after, *block_terms(strategy, self.machinery, world_size)]
        afterwards = self._sum(strategy, after, world_size, notes)
        copied = input_copy(strategy, self.machinery) if computed and computed.without_input else NOTHING
        terms = [term for bucket in (*buckets, after) for term in bucket]
        notes += [term.note for term in terms if term.note]
        notes += [words for term in terms if (words := self.calibration.rests_on(term))]
        between_gpus = any(term.kind in BETWEEN_GPUS for term in terms)
        if between_gpus and topology.machine.other_peers_unknown and cell.get("peer_access") is not False:
            notes += [] if all_reach(topology, world_size) else [UNKNOWN_PEERS]
        every = steps_of_exchange(cell)
        rare = f"models are exchanged every {every} steps: of its time a step has 1/{every}"
        remarks = (rare,) if every > 1 else ()
        longest = max(terms, key=lambda term: term.flow_s if term.busiest else -1.0, default=None)
        waiting = self._waiting(cell, computed)
        each = 1 / every
        exposed_part, afterwards = exposed_part.times(each), afterwards.times(each)
        added = exposed_part + afterwards + copied + waiting
        iteration = self._iteration(strategy, computed, added, notes) if computed else None
        return Prediction(
            cell,
            topology.name,
            iteration,
            computed.step_s if computed else None,
            total(exchanges).times(each) + afterwards,
            exposed_part + afterwards,
            tuple(self._merged(terms, each)),
            "none" if alone or not terms else transport_of(strategy, self.machinery, world_size),
            longest.busiest if longest else None,
            tuple(dict.fromkeys([*notes, *remarks])),
            compute_notes,
            remarks,
            hidden_s,
            waiting,
        )

    def _waiting(self, cell: Mapping[str, Any], computed: Computed | None) -> PredictedValue:
        """For the slowest of the ranks, where more of them take part than were measured."""
        measured_ranks, world_size = self.unseen.largest_world_size, int(cell["world_size"])
        if computed is None or measured_ranks is None or world_size <= measured_ranks:
            return NOTHING
        now, then = (self.machinery.topology.on_nodes(size) for size in (world_size, measured_ranks))
        ratio = waiting_ratio(computed.step_sd, now, then, steps_of_exchange(cell))
        return PredictedValue.of(ratio * computed.step_s.value, "the slowest of the ranks", WAIT_SD)

    def _iteration(
        self, strategy: Strategy, computed: Computed, added: PredictedValue, notes: list[str]
    ) -> PredictedValue:
        cell, step = strategy.cell, without_saved_update(computed, strategy) + added
        exchanges = int(cell["world_size"]) > 1 and cell.get("exchanges", True)
        hooks = cell["step"] == "overlapped" and cell["aggregator"] != "all_reduce"
        if exchanges and not self._is_known(strategy, hooks=hooks):
            least_sd = self.unseen.of_strategy(
                started=computed.by_processor,
                by_host=by_host(strategy) or strategy.codes_by_tensor,
                hooks=hooks,
                shards=hooks and bool(strategy.updates),
            )
            further_sd = beyond(least_sd, added.sd / step.value)
            if further_sd:
                step = step.also("a strategy that was not measured", further_sd)
                host = ", and neither was this host" * self.unseen.other_host
                what = f"{cell['aggregator_label']}'s {cell['step']} step was not measured on several ranks"
                notes.append(f"{what}{host}: at least {least_sd:.0%} in the interval")
        captured, through_host = cell["step"] == "captured", cell.get("peer_access") is False
        ranks = int(cell["world_size"])
        iteration, why = self.unseen.widened(step, ranks, captured=captured, through_host=through_host)
        notes += [why] if why else []
        return iteration

    def _is_known(self, strategy: Strategy, *, hooks: bool) -> bool:
        """Whether a step like it was measured on several ranks: an eager one tells nothing of hooks."""
        key, by_overlap = strategy_key(strategy), strategy.cell["step"] == "overlapped"
        return (by_overlap and self.overlap.is_known(key)) or (not hooks and self.calibration.is_known(key))

    def _exposed(
        self, strategy: Strategy, buckets: Sequence[Sequence[Term]], computed: Computed, notes: list[str]
    ) -> tuple[PredictedValue, float]:
        """What is not hidden, with what hidden messages slow and GPUs' own work; and the seconds hidden."""
        world_size = int(strategy.cell["world_size"])
        moved, by_gpu = (
            [
                self._sum(strategy, [term for term in terms if term.by_gpu == is_own], world_size, said)
                for terms in buckets
            ]
            for is_own, said in ((False, notes), (True, []))
        )
        not_hidden = exposed(moved, strategy.bucket_elements, computed.backward_s)
        hidden_s = max(0.0, total(moved).value - not_hidden.value)
        slowed = self.overlap.slowed(strategy.cell, hidden_s)
        own = sum(any(term.kind not in BY_LIBRARY for term in terms) for terms in buckets)
        held_up_s = max(0.0, own * HOOK_S - computed.backward_s)  # by the host, in hooks of our own kernels
        further = self.overlap.left_over(strategy_key(strategy), world_size, held_up_s)
        exposed_s = not_hidden + slowed + total(by_gpu) + further
        return replace(exposed_s, value=max(0.0, exposed_s.value)), hidden_s

    def _terms(self, strategy: Strategy, world_size: int) -> tuple[list[list[Term]], list[Term]]:
        """Those of each bucket, and those that come after all of them."""
        buckets = [terms_of(strategy, at, self.machinery, world_size) for at in range(len(strategy.buckets))]
        divided = divide_term(strategy.num_elements, strategy, self.machinery, world_size)
        return buckets, [*divided, *update_terms(strategy, self.machinery, world_size)]

    def _computed(self, cell: Mapping[str, Any], notes: list[str]) -> Computed | None:
        if self.compute is None:
            return None
        if (refusal := of_other_device(cell, self.machinery.topology)) is not None:
            notes.append(refusal)
            return None
        try:
            computed = self.compute.step(cell, int(cell["local_batch"]))
        except PredictionError as error:
            notes.append(str(error))
            return None
        notes += computed.notes
        return self._on_shared_cores(cell, computed, notes)

    def _on_shared_cores(self, cell: Mapping[str, Any], computed: Computed, notes: list[str]) -> Computed:
        """Processes on a CPU share its cores: more threads than cores take turns."""
        if self.machinery.has_gpus:
            return computed
        topology = self.machinery.topology
        cores = sum(device.cores or 1 for device in topology.machine.of_kind("cpu")) * topology.num_nodes
        turns = int(cell["world_size"]) * int(cell.get("threads") or 1) / max(cores, 1)
        if turns <= 1:
            return computed
        notes.append(f"more threads than cores: computation taken {turns:.3g} times as long")
        update_s, backward_s = computed.update_s * turns, computed.backward_s * turns
        return replace(
            computed, step_s=computed.step_s.times(turns), update_s=update_s, backward_s=backward_s
        )

    def _sum(
        self, strategy: Strategy, terms: Sequence[Term], world_size: int, notes: list[str]
    ) -> PredictedValue:
        priced = total(self.calibration.seconds(term) for term in terms)
        if not priced.value or all(term.kind == "gpu_work" for term in terms):
            return priced
        key = strategy_key(strategy)
        with_left_over, known = self.calibration.with_left_over(
            key, priced, world_size, on_another_host=self.unseen.other_host
        )
        if not known and self.calibration.num_observations:
            notes.append("this strategy was not measured at a smaller world size")
        elif world_size > 1 and self.unseen.other_host and not self.calibration.is_known(key):
            notes.append(
                f"measured on one rank of another host: {ALONE_SD:.0%} of the exchange in the interval"
            )
        if not any(term.kind in BETWEEN_GPUS for term in terms):
            return with_left_over
        host_only = strategy.cell.get("peer_access") is False
        return self.unseen.of_exchange(
            with_left_over, links_of(self.machinery.topology, world_size, host_only=host_only)
        )

    def _merged(self, terms: Iterable[Term], each: float) -> Iterable[PredictedTerm]:
        merged: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for term in terms:
            sums = merged[term.name, term.kind, term.choice]
            for at, part in enumerate((term, replace(term, flow_s=0.0))):
                sums[at] += each * self.calibration.seconds(part).value
        for (name, kind, choice), (seconds, latency_s) in merged.items():
            yield PredictedTerm(name, kind, seconds, choice, latency_s)


def without_saved_update(computed: Computed, strategy: Strategy) -> PredictedValue:
    """The computed step, less what it takes of the update where not every rank takes all of it."""
    if not strategy.updates or strategy.cell.get("outer_update") is not None:
        return computed.step_s  # of local updates every rank takes its own
    saved = computed.update_s * (1 - min(1.0, strategy.gpu_update_share))
    return PredictedValue(max(0.0, computed.step_s.value - saved), computed.step_s.changes)
