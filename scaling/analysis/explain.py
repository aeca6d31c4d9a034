"""Why a cell takes as long as it does: the rules that apply to it.

The largest avoidable part of the step comes first; "computation" is said only where nothing avoidable
takes over 10%. Then comes what makes the numbers doubtful, and goals that a cell did not
reach. The rules are a table, tried in its order; docs/how-to/read-a-report.md has the same table, with the
words of each. A threshold is a part of the step unless that table says otherwise. What is said of each rule,
and the next experiment, are templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from scaling.analysis import explain_exchange as exchange
from scaling.analysis import explain_limits as limits
from scaling.analysis.candidates import Candidate
from scaling.analysis.cautions import LARGEST_PROFILING_OVERHEAD
from scaling.analysis.columns import SPEEDUP, Row, is_aa_replicate, pick
from scaling.analysis.explain_view import Known, Values, View
from scaling.analysis.findings import Finding
from scaling.analysis.learning import REACHED
from scaling.store.failures import OUT_OF_MEMORY, failure_kind

WIDE_INTERVAL = 0.05
LARGE_FLOOR = 0.05
NO_SPEEDUP = 1.0
SKEW_SHARE = 0.1
CAUSES = {"busy_host", "oversubscribed", "throttled_gpu", "shared_gpu", "periodic"}
"""Of scatter, by their rules: more repeats do not mend them."""


def failed(view: View) -> Values | None:
    if view.row["state"] != "failed":
        return None
    runs = [record for record in (view.cell.records if view.cell else []) if record.state == "failed"]
    kinds = {failure_kind(record.summary, record.reason) for record in runs}
    return {"share": 1.0, "reason": str(view.row["reason"]), "is_out_of_memory": OUT_OF_MEMORY in kinds}


def target(view: View) -> Values | None:
    """A training that did not reach its accuracy."""
    row = view.row
    if row["target_state"] in (None, REACHED):
        return None
    epochs = int(row["epochs"] or 1)
    return {"share": 1.0, **pick(row, "target_accuracy", "target_state"), "epochs": epochs}


def disturbed_gpu(view: View) -> Values | None:
    """GPU clocks were limited, or other processes used the GPU."""
    rule_of = {"throttled": "throttled_gpu", "other_processes": "shared_gpu"}
    warnings = view.row["warnings"] or ()
    disturbed = [one for one in warnings if one.kind in rule_of and rule_of[one.kind] not in view.fired]
    return {"share": 1.0, "warnings": disturbed} if disturbed else None


def straggler(view: View) -> Values | None:
    """Ranks reach the first exchange late, and no single rank is slow by itself."""
    skew_s = view.row["skew_s"]
    if skew_s is None or not view.step_s or skew_s / view.step_s < SKEW_SHARE or not view.exchanges:
        return None
    if view.slow_rank is not None or "oversubscribed" in view.fired:
        return None
    return {"share": min(1.0, skew_s / view.step_s), "skew_s": skew_s}


def no_speedup(view: View) -> Values | None:
    size, speedup = view.row["world_size"], view.row["speedup"]
    if size < 2 or speedup is None or speedup >= NO_SPEEDUP:
        return None
    return {"share": 1 - speedup, "world_size": size, **pick(view.row, *SPEEDUP)}


def scatter(view: View) -> Values | None:
    row = view.row
    if row["iteration_s"] is None or row["iteration_s_low"] is None:
        return None
    half = (row["iteration_s_high"] - row["iteration_s_low"]) / 2 / row["iteration_s"]
    if half <= WIDE_INTERVAL:
        return None
    values = {"interval_method": row["interval_method"], "repeats": int(row["repeats"] or 1)}
    values["has_cause"] = bool(view.fired.keys() & CAUSES)
    return {"share": min(1.0, half), "half_width_ratio": half, **values}


def noise(view: View) -> Values | None:
    floor = view.row["noise_floor"]
    if floor is None or floor <= LARGE_FLOOR:
        return None
    return {"share": min(1.0, floor), "noise_floor": floor}


def profiling_effect(view: View) -> Values | None:
    """Profiling marks that change the times which they show."""
    overhead_s, step_s = view.row["profiling_overhead_s"], view.step_s
    if overhead_s is None or not step_s or abs(overhead_s) <= LARGEST_PROFILING_OVERHEAD * step_s:
        return None
    ratio = abs(overhead_s) / step_s
    return {"share": min(1.0, ratio), "profiling_overhead_s": overhead_s, "profiling_overhead_ratio": ratio}


def one_launch(view: View) -> Values | None:
    """One launch only: the scatter between launches is unknown."""
    row = view.row
    is_one = row["kind"] == "iteration" and row["repeats"] == 1 and row["state"] == "done"
    return {"share": 0.0} if is_one else None


@dataclass(frozen=True)
class Rule:
    # the rule itself: the values of its finding, `share` among them; None where it does not hold
    holds: Callable[[View], Values | None]
    columns: tuple[str, ...]  # of summary.csv that it rests on
    threshold: float | None = None  # the number it holds against; None where there is none

    @property
    def name(self) -> str:
        return self.holds.__name__


LIMITS = (
    Rule(limits.oversubscribed, ("world_size", "threads", "num_nodes")),
    Rule(limits.throttled_gpu, ("warnings", "forward_s", "backward_s"), limits.LOST_SHARE),
    Rule(limits.shared_gpu, ("warnings", "forward_s", "backward_s"), limits.LOST_SHARE),
    Rule(limits.slow_rank, ("profiled_iteration_s",), limits.LOST_SHARE),
    Rule(limits.periodic, ("iteration_s",)),
    Rule(limits.busy_host, ("iteration_s",), limits.QUEUED_SHARE),
    Rule(
        exchange.tiny_buckets, ("exposed_comm_s", "wire_bytes_per_rank", "bucket_mb"), exchange.EXPOSED_SHARE
    ),
    Rule(limits.launches, ("step", "iteration_s", "mfu"), limits.BUSY_ENOUGH),
    Rule(limits.small_batch, ("local_batch", "forward_s", "backward_s"), limits.BATCH_SPEED),
    Rule(
        exchange.exposed_communication,
        ("exposed_comm_s", "hidden_comm_s", "wire_bytes_per_rank", "profiled_iteration_s"),
        exchange.EXPOSED_SHARE,
    ),
    Rule(
        exchange.not_hidden,
        ("exposed_comm_s", "hidden_comm_s", "profiled_iteration_s"),
        exchange.HIDDEN_SHARE,
    ),
    Rule(exchange.host_sums, ("d2h_s", "reduce_s", "h2d_result_s"), exchange.HOST_SHARE),
    Rule(exchange.codec, ("encode_s", "decode_s", "wire_bytes_per_rank"), exchange.CODEC_SHARE),
    Rule(limits.feeding, ("input_s", "h2d_s", "input_placement"), limits.INPUT_SHARE),
    Rule(limits.update, ("update_s",), limits.UPDATE_SHARE),
    Rule(limits.open_time, ("unattributed_s",), limits.OPEN_SHARE),
    Rule(exchange.waiting, ("wait_s",), exchange.WAIT_SHARE),
    Rule(limits.computation, ("forward_s", "backward_s", "mfu"), limits.COMPUTE_SHARE),
    Rule(
        exchange.compression,
        ("wire_bytes_per_rank", "exposed_comm_s", "hidden_comm_s", "encode_s", "decode_s"),
    ),
)
"""What takes the time."""

DOUBTS = (
    Rule(failed, ("state", "reason")),
    Rule(target, ("target_state",)),
    Rule(disturbed_gpu, ("warnings",)),
    Rule(straggler, ("skew_s", "profiled_iteration_s"), SKEW_SHARE),
    Rule(no_speedup, ("speedup",), NO_SPEEDUP),
    Rule(scatter, ("iteration_s_low", "iteration_s_high"), WIDE_INTERVAL),
    Rule(noise, ("noise_floor",), LARGE_FLOOR),
    Rule(profiling_effect, ("profiling_overhead_s", "profiled_iteration_s"), LARGEST_PROFILING_OVERHEAD),
    Rule(one_launch, ("repeats",)),
)
"""What makes the numbers doubtful."""

RULES = (*LIMITS, *DOUBTS)


EQUAL_SHARES = 0.05  # shares that differ by less are as large: their findings keep the table's order

EXPLAINED_KINDS = ("iteration", "convergence")


def explained(known: Known) -> dict[str, list[Finding]]:
    """Cell id -> what the rules find, the most important first, with the `share` of the step."""
    return {
        row["cell_id"]: explain_cell(row, known)
        for row in known.rows
        if row["kind"] in EXPLAINED_KINDS and not is_aa_replicate(row)
    }


def explain_cell(row: Row, known: Known) -> list[Finding]:
    """What the rules find, limits by their share, then doubts."""
    if (cell_id := row["cell_id"]) not in known.findings:
        view = View(row, known)
        limits = sorted(_found(view, LIMITS), key=lambda one: -round(one.values["share"] / EQUAL_SHARES))
        known.findings[cell_id] = [*limits, *_found(view, DOUBTS)]
    return known.findings[cell_id]


def is_limit(finding: Finding) -> bool:
    """Whether the finding names what takes the time; otherwise it names a doubt about the numbers."""
    return any(rule.name == finding.kind for rule in LIMITS)


def limit_of(findings: Sequence[Finding]) -> Finding | None:
    """The finding that takes most of the time; None if no such rule applies."""
    return next((finding for finding in findings if is_limit(finding) and finding.values["share"] > 0), None)


def _found(view: View, rules: Sequence[Rule]) -> list[Finding]:
    findings = []
    for rule in rules:
        values = rule.holds(view)
        if values is not None:
            view.fired[rule.name] = values
            found = {**values, "measured": view.measured}
            findings.append(Finding(rule.name, (view.row["cell_id"],), found))
    return findings


OF_CELLS = ("busy_host", "throttled_gpu", "shared_gpu", "periodic", "oversubscribed")
"""Rules of `explain`; the last one only of the choice: more workers than cores do not disturb fewer ones."""

FAR = 0.25  # the mean step over the typical one, and one launch over the others
OTHERS_AGREE = 0.1  # the other launches differ by so much at most where one is called slow
NEAR_RATIO = 1.1  # measured value to the choice's, up to which a rival's doubts are told
TOO_NOISY = 0.15  # a doubt about a larger part of the step hides what launches would show


def doubts_of(choice: Candidate, rivals: Sequence[Candidate], study: Known) -> list[Finding]:
    """Of each kind the one that weighs most, the heaviest first; rivals are not distinguished from it."""
    found: dict[str, Finding] = {}
    rows = [choice.row, *(rival.row for rival in rivals if rival.value <= NEAR_RATIO * choice.value)]
    for row in rows:
        for one in _of_cell(row, study):
            if one.kind != "oversubscribed" or row is rows[0]:
                found[one.kind] = max(found.get(one.kind, one), one, key=lambda two: two.values["share"])
    return sorted(found.values(), key=lambda one: -float(one.values["share"]))


def is_too_noisy(doubts: Sequence[Finding]) -> bool:
    """Whether they hide what is not decided yet."""
    return any(one.values["share"] >= TOO_NOISY for one in doubts)


def _of_cell(row: Row, study: Known) -> Iterator[Finding]:
    kinds = [one for one in explain_cell(row, study) if one.kind in OF_CELLS]
    yield from kinds
    cells, typical_s = (row["cell_id"],), row["typical_iteration_s"]
    if slow := _slow_launch(row, study):
        yield Finding("slow_launch", cells, slow)
    elif not kinds and typical_s and row["iteration_s"] > (1 + FAR) * typical_s:
        yield Finding("far_mean", cells, {"share": 1 - typical_s / row["iteration_s"]})


def _slow_launch(row: Row, study: Known) -> dict[str, float] | None:
    """One launch that took far longer than all others, which agree."""
    cell = study.cells.get(row["cell_id"])
    launches = {launch.repeat: launch.iteration_s for launch in cell.launches} if cell else {}
    if len(launches) < 3:
        return None
    slowest = max(launches, key=launches.__getitem__)
    others = [seconds for repeat, seconds in launches.items() if repeat != slowest]
    ratio = launches[slowest] / median(others)
    if ratio <= 1 + FAR or max(others) > (1 + OTHERS_AGREE) * min(others):
        return None
    return {"share": 1 - 1 / ratio, "ratio": ratio, "number": slowest + 1, "num_launches": len(launches)}
