"""Explanations of synthetic studies whose bottleneck was built in."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.analysis.columns import columns
from scaling.analysis.explain import RULES, is_limit, limit_of
from scaling.report.text import FINDINGS, next_experiment, text_of

MS = 0.001


def steps(milliseconds, count=20):
    """Three launches that agree."""
    return [[milliseconds * MS] * count] * 3


def spans(**phases):
    """Phases in milliseconds, one after the other."""
    found, end = [], 0.0
    for name, milliseconds in phases.items():
        found.append((name, "main", end, end + milliseconds * MS))
        end += milliseconds * MS
    return found


PAIR = {"world_size": 2, "step": "overlapped"}
GPUS = {"world_size": 2, "device": "cuda"}
EXCHANGING = spans(forward=2, communicate=8)
LARGER_BATCH = "try a larger local batch (check the accuracy): the exchange does not grow with it"


def sent(num_bytes):
    return {"summary": {"wire_bytes_per_rank": [num_bytes] * 2}}


def findings(study, cell_id, **more):
    return {one.kind: one for one in study.explained(**more)[cell_id]}


def first(study, cell_id, **more):
    return limit_of(study.explained(**more)[cell_id])


def advice(study, cell_id):
    return next_experiment(first(study, cell_id))


def test_launches_bind_where_the_captured_step_is_much_shorter(timed):
    gpu = {"device": "cuda", "aggregator": "all_reduce", "world_size": 4}
    eager = timed.add(steps(10), spans=spans(forward=4, backward=6), **gpu)
    timed.add(steps(2.3), spans=spans(forward=1, backward=1.3), step="captured", **gpu)
    found = first(timed, eager)
    assert (found.kind, next_experiment(found)) == ("launches", "use step=captured")
    assert "GPU busy at most 23% of the step" in text_of(found)
    assert "computation" not in findings(timed, eager)


def test_what_the_device_could_do_is_said_where_it_was_measured(timed):
    rate = {"flops_per_s": 1e12, "low": 1e12, "high": 1e12, "size": 8192, "num_samples": 3}
    known = {"model_flops": 4e8, "matrix_rate": [rate]}
    gpu = {"device": "cuda", "aggregator": "all_reduce"}
    work = spans(forward=4, backward=6)
    eager = timed.add(steps(10), spans=work, summary=known, **gpu)
    captured = timed.add(steps(2), spans=spans(forward=1, backward=1), step="captured", **gpu)
    said = "bound by kernel launches from Python, MFU 4%: GPU busy at most 20% of the step"
    assert text_of(first(timed, eager)).startswith(said)
    said = "computation: forward and backward take 100% of the step"
    assert text_of(first(timed, captured)) == said
    larger = timed.add(steps(10), spans=work, summary={**known, "model_flops": 4.5e9}, batch=128, **gpu)
    said += "; the step reaches 45% of the rate of float32 matrix products measured on this GPU (MFU)"
    assert text_of(first(timed, larger)) == said
    timed.cells[:] = [replace(cell, gpu="NVIDIA H200") for cell in timed.cells]
    assert text_of(first(timed, larger)).endswith("measured on this GPU (MFU; by the data sheet 1%)")
    assert "MFU 4% (by the data sheet 0%): GPU busy" in text_of(first(timed, eager))


def test_launches_are_told_by_another_aggregators_captured_step_too(timed):
    gpu = {"device": "cuda", "world_size": 4}
    work = spans(forward=4, backward=6, reduce=2)
    eager = timed.add(steps(12), spans=work, aggregator="host_serial", **gpu)
    timed.add(steps(2), spans=spans(forward=1, backward=1), step="captured", aggregator="ring", **gpu)
    assert "GPU busy at most 20% of forward and backward" in text_of(first(timed, eager))


def test_small_batch_leaves_the_gpu_idle(timed):
    gpu = {"device": "cuda", "batch": 128}
    timed.add(steps(10), spans=spans(forward=4, backward=6), **gpu)
    work = spans(forward=4, backward=5.5)
    found = first(timed, timed.add(steps(9.5), spans=work, aggregator="ring", world_size=4, **gpu))
    assert found.kind == "small_batch"
    said = "a batch of 32 underuses a GPU; 4 times the batch takes only 1.1 times as long"
    assert text_of(found) == f"{said} (profiled forward + backward: 9.50 and 10.0 ms)"
    then = "use a larger global batch (check the accuracy): 128 per GPU; or try step=captured"
    assert next_experiment(found) == then
    # As fast per sample as with 128 it would take 10 / 4 of the 9.5 ms.
    assert found.values["share"] == pytest.approx((9.5 - 10 / 4) / 9.5)


def test_exposed_communication_on_the_host_link_with_its_bandwidth(timed):
    work = spans(forward=0.5, backward=0.7, communicate=8.8)
    ring = {"aggregator": "ring", "peer_access": False, **GPUS, **sent(211_200_000)}
    found = first(timed, timed.add(steps(10), spans=work, **ring))
    assert found.kind == "exposed_communication"
    assert text_of(found) == "the exchange on the host link is exposed for 88% of the step, at 24 GB/s a rank"
    assert found.values["bytes_per_s"] == pytest.approx(24e9)
    assert next_experiment(found) == "try peer_access=true where the machine has it"


def test_copies_to_the_host_have_phases_of_their_own_and_no_rate_is_told(timed):
    work = spans(forward=1, d2h=1, communicate=7, h2d_result=1)
    cell = timed.add(steps(10), spans=work, aggregator="mpi", **GPUS, **sent(300_000_000))
    found = findings(timed, cell)["exposed_communication"]
    assert text_of(found) == "the exchange between the GPUs is exposed for 70% of the step"
    assert "bytes_per_s" not in found.values


def test_peer_access_that_was_measured_is_named_with_its_time(timed):
    gpu = {"spans": spans(forward=1, backward=1, communicate=8), "aggregator": "ring", **GPUS}
    off = timed.add(steps(10), peer_access=False, **gpu)
    timed.add(steps(3), split_s=0.01, peer_access=True, **gpu)
    assert advice(timed, off).endswith("3.00 ms")


@pytest.mark.parametrize(("own", "better", "said"), [
    (steps(10), steps(8), "use ring: 8.00 ms"),
    (steps(10)[:1], steps(8)[:1], "measure ring again: 8.00 ms in one launch"),
    (steps(10), steps(9.9), LARGER_BATCH), (steps(10)[:1], steps(9.9)[:1], LARGER_BATCH),
    ([[one * MS] * 20 for one in (8, 10, 12)], [[one * MS] * 20 for one in (11, 8, 9)], LARGER_BATCH),
], ids=["shown", "one launch", "too little", "too little in one launch", "within the scatter"])  # fmt: skip
def test_a_better_aggregator_is_used_if_launches_show_it_else_tried(timed, own, better, said):
    cell = timed.add(own, spans=EXCHANGING, aggregator="tree", **PAIR)
    timed.add(better, spans=EXCHANGING, aggregator="ring", **PAIR)
    assert advice(timed, cell) == said


def test_control_arms_and_codecs_are_never_the_next_experiment(timed):
    cell = timed.add(steps(10), spans=EXCHANGING, aggregator="ring", device="cuda", **PAIR)
    timed.add(steps(2), spans=spans(forward=2), aggregator="no_op", device="cuda", **PAIR)
    timed.add(steps(3), spans=spans(forward=2, encode=1), aggregator="one_bit", device="cuda", **PAIR)
    assert advice(timed, cell) == LARGER_BATCH


def codec_beside(study, launches=3, exact_ms=None, codec_ms=2, step_ms=5):
    """What is found of a codec beside an exact exchange of 10 ms, and perhaps one of `exact_ms`."""
    cells = [
        (10, EXCHANGING, {"aggregator": "tree", **sent(196_000_000)}),
        (step_ms, spans(forward=2, encode=codec_ms, communicate=1),
         {"aggregator": "one_bit", "lossy": True, "split_s": 0.015, **sent(6_000_000)}),
    ]  # fmt: skip
    if exact_ms is not None:
        cells += [(exact_ms, spans(forward=2), {"aggregator": "all_reduce", **sent(196_000_000)})]
    ids = [study.add(steps(length)[:launches], spans=work, **cell, **GPUS) for length, work, cell in cells]
    return findings(study, ids[0]).get("compression")


@pytest.mark.parametrize(("codec_ms", "step_ms", "words"), [
    (10, 15, "19.0 GB/s (measured: 24.5 GB/s), takes 15.0 ms a step, 1.50 ±<0.1% times as long: it does"
     " not pay off"),
    (2, 15, "95.0 GB/s (measured: 24.5 GB/s), takes 15.0 ms a step, 1.50 ±<0.1% times as long: it does"
     " not pay off"),
    (2, 5, "95.0 GB/s (measured: 24.5 GB/s), takes 5.00 ms a step, 0.50 ±<0.1% times as long: it pays"
     " off"),
    (2, 9.9, "95.0 GB/s (measured: 24.5 GB/s), takes 9.90 ms a step, 0.99 ±<0.1% times as long: it does"
     " not pay off"),
])  # fmt: skip
def test_a_codec_pays_off_where_its_step_was_shorter(timed, codec_ms, step_ms, words):
    found = codec_beside(timed, codec_ms=codec_ms, step_ms=step_ms)
    rates = {"break_even_bytes_per_s": 190e6 / (codec_ms * MS), "bytes_per_s": 24.5e9}
    assert {name: found.values[name] for name in rates} == pytest.approx(rates)
    assert text_of(found) == f"one_bit, whose codec pays off below {words}"
    assert found.values["pays"] == (step_ms == 5)


def test_one_launch_does_not_show_that_a_codec_pays_off(timed):
    assert "seen in one launch: it is not shown to pay off" in text_of(codec_beside(timed, launches=1))


@pytest.mark.parametrize(("exact_ms", "is_compared"), [(6, False), (12, True)])
def test_a_codec_is_not_compared_with_an_exact_exchange_that_another_beats(timed, exact_ms, is_compared):
    assert (codec_beside(timed, exact_ms=exact_ms) is not None) == is_compared


def test_an_exact_aggregator_that_packs_tensors_is_no_codec_that_pays(timed):
    cell = timed.add(steps(10), spans=EXCHANGING, aggregator="tree", **GPUS, **sent(196_000_000))
    packed = spans(forward=2, encode=1, communicate=6)
    timed.add(steps(9), spans=packed, aggregator="tf_spec", **GPUS, **sent(190_000_000))
    assert "compression" not in findings(timed, cell)


@pytest.mark.parametrize(("phases", "cell", "rule", "words"), [
    ({"h2d": 4, "forward": 6}, {"input_placement": "pageable"}, "feeding", "input over pageable memory: 40%"),
    ({"input": 4, "forward": 6}, {"augmentation": "standard"}, "feeding",
     "gathering the batch on the device, and augmentation: 40%"),
    ({"input": 5, "forward": 5}, {"input_placement": "loader", "loader_workers": 2}, "feeding",
     "bound by the loader (2 workers)"),
    ({"forward": 2, "d2h": 2, "reduce": 4, "h2d_result": 2}, {"aggregator": "host_serial", "world_size": 2},
     "host_sums", "the exchange through the host takes 80% of the step (sums 40%, copies 40%)"),
    ({"forward": 2, "encode": 6, "decode": 2}, {"aggregator": "one_bit", "world_size": 2}, "codec",
     "encoding and decoding take 80%"),
    ({"forward": 4, "update": 6}, {}, "update", "the update takes 60%"),
    ({"forward": 4}, {}, "open_time", "60% of the step is in no phase"),
    ({"forward": 4, "backward": 6}, {}, "computation", "forward and backward take 100%"),
    ({"forward": 4, "wait": 6}, {"aggregator": "host_serial", "world_size": 2}, "waiting",
     "waiting for other ranks, 60%"),
])  # fmt: skip
def test_what_takes_most_of_the_step_is_what_limits_it(timed, phases, cell, rule, words):
    found = first(timed, timed.add(steps(10), spans=spans(**phases), **cell))
    assert (found.kind, words in text_of(found)) == (rule, True)


@pytest.mark.parametrize(("measured", "then"), [
    ((), "try all_reduce or ring: not through the host"),
    (("all_reduce", "ring"), "try a larger batch (check the accuracy): copies and sums do not grow with it"),
])  # fmt: skip
def test_slower_exchanges_that_were_measured_are_not_proposed(timed, measured, then):
    for name in measured:
        timed.add(steps(200), aggregator=name, world_size=2)
    host = spans(forward=2, d2h=2, reduce=4, h2d_result=2)
    assert advice(timed, timed.add(steps(10), spans=host, aggregator="host_serial", world_size=2)) == then


def test_the_next_experiment_of_an_augmented_step_is_without_it(timed):
    cell = timed.add(steps(10), spans=spans(input=5, forward=5), device="cuda", augmentation="standard")
    assert advice(timed, cell) == "try augmentation=none; or try input_placement=pinned"


def test_overlapped_step_that_hides_nothing_is_told(timed):
    def found(name, backward_end, exchange_start):
        exchange = ("communicate", "comm", exchange_start * MS, 10 * MS)
        own = [("backward", "main", 0.0, backward_end * MS), exchange]
        return findings(timed, timed.add(steps(10), spans=own, aggregator=name, **PAIR))

    assert "0% of its exchange is hidden" in text_of(found("all_reduce", 6, 6)["not_hidden"])
    assert "not_hidden" not in found("ring", 9, 3)


def test_more_threads_than_cores_come_first_on_a_cpu(timed):
    cell = timed.add(steps(10), spans=spans(forward=4, backward=6), aggregator="ring", world_size=4)
    assert [first(timed, cell, num_cores=one).kind for one in (2, 8)] == ["oversubscribed", "computation"]


def test_doubts_follow_the_limits(timed):
    timed.add(steps(10), spans=spans(forward=10))
    cell = timed.add([[0.02] * 9, [0.03] * 9], spans=spans(forward=15), aggregator="ring", world_size=2)
    found = timed.explained()[cell]
    assert [is_limit(one) for one in found] == sorted(map(is_limit, found), reverse=True)
    assert {"no_speedup", "scatter"} <= {one.kind for one in found}


def test_training_that_misses_its_target_is_told_and_replicates_are_not_explained(timed):
    missed = timed.add_training([5.0], accuracy=0.9, aggregator="ring", world_size=2)
    replicate = timed.add(steps(10), aggregator="ring", world_size=2, aa_replicate=1)
    found = timed.explained()
    assert ([one.kind for one in found[missed]], replicate in found) == (["target"], False)


def documented():
    """Name -> (when, columns) of the rules in the document's table."""
    document = (Path(__file__).parents[2] / "docs" / "how-to" / "read-a-report.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in document.splitlines()]
    return {words[0].strip("`"): (words[1], words[-1]) for words in lines if len(words) == 5}


def test_document_has_every_rule_with_its_threshold_and_columns():
    table = documented()
    assert [name for name in table if name in {rule.name for rule in RULES}] == [rule.name for rule in RULES]
    for rule in RULES:
        when, listed = table[rule.name]
        assert set(rule.columns) <= set(columns()), rule.name
        assert listed == ", ".join(f"`{name}`" for name in rule.columns)
        if rule.threshold is not None:
            shown = {f"{rule.threshold:g}", f"{100 * rule.threshold:g}%"}
            assert any(text in when for text in shown), (rule.name, when)


@pytest.mark.parametrize(("reason", "then"), [
    ("rank 0: out of memory: 2 GiB", "try a smaller local batch"), ("no tree", "fix the cause, then"),
])  # fmt: skip
def test_a_failed_cell_has_its_reason_and_what_its_kind_of_failure_asks_for(timed, reason, then):
    cell = timed.add([], aggregator="ring", world_size=2, state="failed")
    for record in timed.cells[-1].records:
        record.reason = reason
    assert next_experiment(findings(timed, cell)["failed"]).startswith(then)


@pytest.mark.parametrize(("measured", "left"), [((), "1 or 5 or 25"), ((1, 25), "5"), ((1, 5, 25), "")])
def test_no_size_of_buckets_is_advised_that_was_measured(timed, measured, left):
    ddp = {"spans": EXCHANGING, "aggregator": "all_reduce", **PAIR}
    cell, *_ = (timed.add(steps(10), bucket_mb=bucket_mb, **ddp) for bucket_mb in (50, *measured))
    said = next_experiment(findings(timed, cell)["not_hidden"])
    assert said.partition(";")[0] == (f"try bucket_mb={left}" if left else said)


def test_what_to_try_goes_through_one_function_that_leaves_out_what_was_measured():
    """`untried`."""
    for template in FINDINGS.glob("*.j2"):
        text = re.sub(r"{#.*?#}", "", template.read_text(), flags=re.DOTALL)
        assert not re.findall(r"(?<!startswith\(\")\btry\b|compare (?:an|\w+=)", text), template.name


BATCHES = ({"local_batch": 32, "global_batch": 64}, {"local_batch": 64, "global_batch": 128})
LOADED = {"input_placement": "loader", "loader_workers": 2}
UNLOADED = {"input_placement": "pinned", "loader_workers": None}
FASTER = {"slower": 0.5}
OVERLAPPED = {"aggregator": "all_reduce", "step": "overlapped"}


@pytest.mark.parametrize(("work", "cell", "others", "said"), [
    (EXCHANGING, {"step": "overlapped"}, BATCHES[1:], "try a local batch above 64"),
    (spans(forward=2, d2h=2, reduce=6), {"aggregator": "host_serial"},
     [{"aggregator": "all_reduce"}, {"aggregator": "ring"}, BATCHES[1]], "try a local batch above 64"),
    (spans(forward=2, update=8), {}, BATCHES[1:], "try a local batch above 64"),
    (spans(input=8, forward=2), LOADED, [{"loader_workers": 8}], "try more than 8 loader_workers"),
    (spans(input=8, forward=2), {"device": "cuda", **LOADED}, [UNLOADED], "try more loader_workers"),
    (spans(input=8, forward=2), {"device": "cuda", **LOADED},
     [{**UNLOADED, **FASTER}, {**UNLOADED, "input_placement": "device", "slower": 0.6}],
     "use input_placement=pinned: 5.00 ms; or try more loader_workers"),
    (spans(forward=9, backward=1), {}, [{"world_size": 4, **FASTER}], "try more than 4 workers"),
    (EXCHANGING, {"aggregator": "tree"}, [OVERLAPPED], "try a larger local batch (check"),
    (EXCHANGING, {"aggregator": "tree"}, [{**OVERLAPPED, **FASTER}],
     "use step=overlapped with all_reduce: 5.00 ms"),
    (spans(forward=2, encode=8), {"aggregator": "one_bit"}, [{"aggregator": "all_reduce"}], ""),
    (spans(forward=2, encode=8), {"aggregator": "one_bit"}, [], "try all_reduce, which has no codec"),
])  # fmt: skip
def test_no_advice_is_what_another_cell_of_the_study_has(timed, work, cell, others, said):
    cell = {"world_size": 2, "aggregator": "ring", **BATCHES[0], **cell}
    cell_id = timed.add(steps(10), spans=work, **cell)
    for other in others:
        length = 10 * other.get("slower", 2)
        changed = {key: value for key, value in other.items() if key != "slower"}
        timed.add(steps(length), spans=spans(forward=length), **{**cell, **changed})
    found = advice(timed, cell_id)
    assert (found or "").startswith(said)
    assert "input_placement" not in (found or "").removeprefix(said)
    assert said or found is None
