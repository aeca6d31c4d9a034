"""Explanations of synthetic studies whose bottleneck was built in."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.analysis.columns import columns
from scaling.analysis.explain import RULES, is_limit, limit_of
from scaling.report.text import FINDINGS, next_experiment, text_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "read-a-report.md"
MS = 0.001


def steps(milliseconds, count=20):
    """Three launches that agree."""
    return [[milliseconds * MS] * count] * 3


def spans(*phases, lane="main"):
    """Phases in milliseconds, one after the other."""
    found, end = [], 0.0
    for name, milliseconds in phases:
        found.append((name, lane, end, end + milliseconds * MS))
        end += milliseconds * MS
    return found


def findings(study, cell_id, **more):
    return {one.kind: one for one in study.explained(**more)[cell_id]}


def first(study, cell_id, **more):
    return limit_of(study.explained(**more)[cell_id])


def test_launches_bind_where_the_captured_step_is_much_shorter(make_study):
    study = make_study()
    work = spans(("forward", 4), ("backward", 6))
    gpu = {"device": "cuda", "aggregator": "all_reduce", "world_size": 4}
    eager = study.add(steps(10), spans=work, **gpu)
    study.add(steps(2.3), spans=spans(("forward", 1), ("backward", 1.3)), step="captured", **gpu)
    found = first(study, eager)
    assert found.kind == "launches"
    assert "GPU busy at most 23% of the step" in text_of(found)
    assert next_experiment(found) == "use step=captured"
    assert "computation" not in findings(study, eager)


def test_what_the_device_could_do_is_said_where_it_was_measured(make_study):
    study = make_study()
    rate = {"flops_per_s": 1e12, "low": 1e12, "high": 1e12, "size": 8192, "num_samples": 3}
    known = {"model_flops": 4e8, "matrix_rate": [rate]}
    gpu = {"device": "cuda", "aggregator": "all_reduce"}
    work = spans(("forward", 4), ("backward", 6))
    eager = study.add(steps(10), spans=work, summary=known, **gpu)
    captured = study.add(steps(2), spans=spans(("forward", 1), ("backward", 1)), step="captured", **gpu)
    said = "bound by kernel launches from Python, MFU 4%: GPU busy at most 20% of the step"
    assert text_of(first(study, eager)).startswith(said)
    said = "computation: forward and backward take 100% of the step"
    assert text_of(first(study, captured)) == said
    larger = study.add(steps(10), spans=work, summary={**known, "model_flops": 4.5e9}, batch=128, **gpu)
    assert (
        text_of(first(study, larger))
        == f"{said}; the step reaches 45% of the rate of float32 matrix products measured on this GPU (MFU)"
    )
    study.cells[:] = [replace(cell, gpu="NVIDIA H200") for cell in study.cells]
    assert text_of(first(study, larger)).endswith("measured on this GPU (MFU; by the data sheet 1%)")
    assert "MFU 4% (by the data sheet 0%): GPU busy" in text_of(first(study, eager))


def test_launches_are_told_by_another_aggregators_captured_step_too(make_study):
    study = make_study()
    gpu = {"device": "cuda", "world_size": 4}
    eager = study.add(
        steps(12),
        spans=spans(("forward", 4), ("backward", 6), ("reduce", 2)),
        aggregator="host_serial",
        **gpu,
    )
    captured = spans(("forward", 1), ("backward", 1))
    study.add(steps(2), spans=captured, step="captured", aggregator="ring", **gpu)
    assert "GPU busy at most 20% of forward and backward" in text_of(first(study, eager))


def test_small_batch_leaves_the_gpu_idle(make_study):
    study = make_study()
    gpu = {"device": "cuda", "batch": 128}
    study.add(steps(10), spans=spans(("forward", 4), ("backward", 6)), **gpu)
    four = {"aggregator": "ring", "world_size": 4, **gpu}
    small = study.add(steps(9.5), spans=spans(("forward", 4), ("backward", 5.5)), **four)
    found = first(study, small)
    assert found.kind == "small_batch"
    said = "a batch of 32 underuses a GPU: 4 times the batch takes only 1.1 times as long"
    assert text_of(found) == f"{said} (profiled forward + backward: 9.50 and 10.0 ms)"
    assert (
        next_experiment(found)
        == "use a larger global batch (check the accuracy): 128 per GPU; or try step=captured"
    )
    # As fast per sample as with 128 it would take 10 / 4 of the 9.5 ms.
    assert found.values["share"] == pytest.approx((9.5 - 10 / 4) / 9.5)


def test_exposed_communication_on_the_host_link_with_its_bandwidth(make_study):
    study = make_study()
    cell = study.add(
        steps(10),
        spans=spans(("forward", 0.5), ("backward", 0.7), ("communicate", 8.8)),
        device="cuda", aggregator="ring", world_size=2, peer_access=False,
        summary={"wire_bytes_per_rank": [211_200_000] * 2},
    )  # fmt: skip
    found = first(study, cell)
    assert found.kind == "exposed_communication"
    assert text_of(found) == "the exchange on the host link is exposed for 88% of the step, at 24 GB/s a rank"
    assert found.values["bytes_per_s"] == pytest.approx(24e9)
    assert next_experiment(found) == "try peer_access=true where the machine has it"


def test_copies_to_the_host_have_phases_of_their_own_and_no_rate_is_told(make_study):
    study = make_study()
    cell = study.add(
        steps(10),
        spans=spans(("forward", 1), ("d2h", 1), ("communicate", 7), ("h2d_result", 1)),
        device="cuda", aggregator="mpi", world_size=2,
        summary={"wire_bytes_per_rank": [300_000_000] * 2},
    )  # fmt: skip
    found = findings(study, cell)["exposed_communication"]
    assert text_of(found) == "the exchange between the GPUs is exposed for 70% of the step"
    assert "bytes_per_s" not in found.values


def test_peer_access_that_was_measured_is_named_with_its_time(make_study):
    study = make_study()
    work = spans(("forward", 1), ("backward", 1), ("communicate", 8))
    gpu = {"device": "cuda", "aggregator": "ring", "world_size": 2}
    off = study.add(steps(10), spans=work, peer_access=False, **gpu)
    study.add(steps(3), spans=work, split_s=0.01, peer_access=True, **gpu)
    assert next_experiment(first(study, off)).endswith("3.00 ms")


@pytest.mark.parametrize(
    ("better_ms", "launches", "said"),
    [
        (8, 3, "use ring: 8.00 ms"),
        (8, 1, "measure ring again: 8.00 ms in one launch"),
        (9.9, 3, "try a larger local batch (check the accuracy): the exchange does not grow with it"),
        (9.9, 1, "try a larger local batch (check the accuracy): the exchange does not grow with it"),
    ],
)
def test_a_better_aggregator_is_used_if_launches_show_it_else_tried(make_study, better_ms, launches, said):
    study = make_study()
    pair = {"world_size": 2, "step": "overlapped"}
    work = spans(("forward", 2), ("communicate", 8))
    cell = study.add(steps(10)[:launches], spans=work, aggregator="tree", **pair)
    study.add(steps(better_ms)[:launches], spans=work, aggregator="ring", **pair)
    assert next_experiment(first(study, cell)) == said


def test_a_better_aggregator_within_the_scatter_of_launches_is_not_named(make_study):
    study = make_study()
    pair = {"world_size": 2, "step": "overlapped", "spans": spans(("forward", 2), ("communicate", 8))}
    cell = study.add([[one * MS] * 20 for one in (8, 10, 12)], aggregator="tree", **pair)
    study.add([[one * MS] * 20 for one in (11, 8, 9)], aggregator="ring", **pair)
    assert next_experiment(first(study, cell)).startswith("try a larger local batch")


def test_control_arms_and_codecs_are_never_the_next_experiment(make_study):
    study = make_study()
    gpu = {"device": "cuda", "world_size": 2, "step": "overlapped"}
    cell = study.add(steps(10), spans=spans(("forward", 2), ("communicate", 8)), aggregator="ring", **gpu)
    study.add(steps(2), spans=spans(("forward", 2)), aggregator="no_op", **gpu)
    study.add(steps(3), spans=spans(("forward", 2), ("encode", 1)), aggregator="one_bit", **gpu)
    assert next_experiment(first(study, cell)) == (
        "try a larger local batch (check the accuracy): the exchange does not grow with it"
    )


@pytest.mark.parametrize(
    ("codec_ms", "step_ms", "words"),
    [
        (10, 15, "19.0 GB/s (measured: 24.5 GB/s), takes 15.0 ms a step, 1.50 ±<0.1% times as long:"
         " it does not pay off"),
        (2, 15, "95.0 GB/s (measured: 24.5 GB/s), takes 15.0 ms a step, 1.50 ±<0.1% times as long:"
         " it does not pay off"),
        (2, 5, "95.0 GB/s (measured: 24.5 GB/s), takes 5.00 ms a step, 0.50 ±<0.1% times as long:"
         " it pays off"),
        (2, 9.9, "95.0 GB/s (measured: 24.5 GB/s), takes 9.90 ms a step, 0.99 ±<0.1% times as long:"
         " it does not pay off"),
    ],
)  # fmt: skip
def test_a_codec_pays_off_where_its_step_was_shorter(make_study, codec_ms, step_ms, words):
    study = make_study()
    pair = {"device": "cuda", "world_size": 2}
    cell = study.add(
        steps(10), spans=spans(("forward", 2), ("communicate", 8)), aggregator="all_reduce",
        summary={"wire_bytes_per_rank": [196_000_000] * 2}, **pair,
    )  # fmt: skip
    study.add(
        steps(step_ms), spans=spans(("forward", 2), ("encode", codec_ms), ("communicate", 1)),
        split_s=0.015, aggregator="one_bit", lossy=True,
        summary={"wire_bytes_per_rank": [6_000_000] * 2}, **pair,
    )  # fmt: skip
    found = findings(study, cell)["compression"]
    even = 190e6 / (codec_ms * MS)
    assert found.values["break_even_bytes_per_s"] == pytest.approx(even)
    assert found.values["bytes_per_s"] == pytest.approx(24.5e9)
    assert text_of(found) == f"one_bit, whose codec pays off below {words}"
    assert found.values["pays"] == (step_ms == 5)


CODED = {"split_s": 0.015, "aggregator": "one_bit", "lossy": True}


def codec_beside(study, launches=3, exact_ms=None):
    """What is found of the codec whose step takes half as long, beside an exact exchange of `exact_ms`."""
    pair = {"device": "cuda", "world_size": 2}
    sent = {"summary": {"wire_bytes_per_rank": [196_000_000] * 2}, **pair}
    cell = study.add(
        steps(10)[:launches], spans=spans(("forward", 2), ("communicate", 8)), aggregator="tree", **sent
    )
    study.add(
        steps(5)[:launches], spans=spans(("forward", 2), ("encode", 2), ("communicate", 1)),
        summary={"wire_bytes_per_rank": [6_000_000] * 2}, **CODED, **pair,
    )  # fmt: skip
    if exact_ms is not None:
        study.add(steps(exact_ms)[:launches], spans=spans(("forward", 2)), aggregator="all_reduce", **sent)
    return findings(study, cell).get("compression")


def test_one_launch_does_not_show_that_a_codec_pays_off(make_study):
    found = codec_beside(make_study(), launches=1)
    assert "seen in one launch: it is not shown to pay off" in text_of(found)
    assert "pays off" in text_of(codec_beside(make_study()))


def test_a_codec_is_not_compared_with_an_exact_exchange_that_another_beats(make_study):
    assert codec_beside(make_study(), exact_ms=6) is None
    assert codec_beside(make_study(), exact_ms=12) is not None


def test_an_exact_aggregator_that_packs_tensors_is_no_codec_that_pays(make_study):
    study = make_study()
    pair = {"device": "cuda", "world_size": 2}
    cell = study.add(
        steps(10), spans=spans(("forward", 2), ("communicate", 8)), aggregator="tree",
        summary={"wire_bytes_per_rank": [196_000_000] * 2}, **pair,
    )  # fmt: skip
    study.add(
        steps(9), spans=spans(("forward", 2), ("encode", 1), ("communicate", 6)), aggregator="tf_spec",
        summary={"wire_bytes_per_rank": [190_000_000] * 2}, **pair,
    )  # fmt: skip
    assert "compression" not in findings(study, cell)


@pytest.mark.parametrize(
    ("phases", "cell", "rule", "words"),
    [
        ([("h2d", 4), ("forward", 6)], {"input_placement": "pageable"}, "feeding",
         "input over pageable memory: 40%"),
        ([("input", 4), ("forward", 6)], {"augmentation": "standard"}, "feeding",
         "gathering the batch on the device, and augmentation: 40%"),
        ([("input", 5), ("forward", 5)], {"input_placement": "loader", "loader_workers": 2}, "feeding",
         "bound by the loader (2 workers)"),
        ([("forward", 2), ("d2h", 2), ("reduce", 4), ("h2d_result", 2)],
         {"aggregator": "host_serial", "world_size": 2}, "host_sums",
         "copies to the host 20%, sums 40%, copies back 20%"),
        ([("forward", 2), ("encode", 6), ("decode", 2)], {"aggregator": "one_bit", "world_size": 2}, "codec",
         "encoding and decoding take 80%"),
        ([("forward", 4), ("update", 6)], {}, "update", "the update takes 60%"),
        ([("forward", 4)], {}, "open_time", "60% of the step is in no phase"),
        ([("forward", 4), ("backward", 6)], {}, "computation", "forward and backward take 100%"),
        ([("forward", 4), ("wait", 6)], {"aggregator": "host_serial", "world_size": 2}, "waiting",
         "waiting for other ranks, 60%"),
    ],
)  # fmt: skip
def test_what_takes_most_of_the_step_is_what_limits_it(make_study, phases, cell, rule, words):
    study = make_study()
    cell_id = study.add(steps(10), spans=spans(*phases), **cell)
    found = first(study, cell_id)
    assert found.kind == rule
    assert words in text_of(found)


@pytest.mark.parametrize(
    ("measured", "then"),
    [
        ((), "try all_reduce or ring: not through the host"),
        (
            ("all_reduce", "ring"),
            "try a larger batch (check the accuracy): copies and sums do not grow with it",
        ),
    ],
)
def test_slower_exchanges_that_were_measured_are_not_proposed(make_study, measured, then):
    study = make_study()
    for name in measured:
        study.add([20 * step_s for step_s in steps(10)], aggregator=name, world_size=2)
    host = spans(("forward", 2), ("d2h", 2), ("reduce", 4), ("h2d_result", 2))
    cell_id = study.add(steps(10), spans=host, aggregator="host_serial", world_size=2)
    assert next_experiment(first(study, cell_id)) == then


def test_the_next_experiment_of_an_augmented_step_is_without_it(make_study):
    study = make_study()
    gpu = {"device": "cuda", "augmentation": "standard"}
    cell_id = study.add(steps(10), spans=spans(("input", 5), ("forward", 5)), **gpu)
    then = next_experiment(first(study, cell_id))
    assert then == "try augmentation=none; or try input_placement=pinned"


def test_overlapped_step_that_hides_nothing_is_told(make_study):
    study = make_study()
    hidden = [("backward", "main", 0.0, 6 * MS), ("communicate", "comm", 6 * MS, 10 * MS)]
    cell = study.add(steps(10), spans=hidden, aggregator="all_reduce", world_size=2, step="overlapped")
    assert "0% of its exchange is hidden" in text_of(findings(study, cell)["not_hidden"])
    fine = [("backward", "main", 0.0, 9 * MS), ("communicate", "comm", 3 * MS, 10 * MS)]
    cell = study.add(steps(10), spans=fine, aggregator="ring", world_size=2, step="overlapped")
    assert "not_hidden" not in findings(study, cell)


def test_more_threads_than_cores_come_first_on_a_cpu(make_study):
    study = make_study()
    cell = study.add(steps(10), spans=spans(("forward", 4), ("backward", 6)), aggregator="ring", world_size=4)
    assert first(study, cell, num_cores=2).kind == "oversubscribed"
    assert first(study, cell, num_cores=8).kind == "computation"


def test_doubts_follow_the_limits(make_study):
    study = make_study()
    study.add(steps(10), spans=spans(("forward", 10)))
    launches = [[0.02] * 9, [0.03] * 9]
    cell = study.add(launches, spans=spans(("forward", 15)), aggregator="ring", world_size=2)
    found = study.explained()[cell]
    assert [is_limit(one) for one in found] == sorted(map(is_limit, found), reverse=True)
    assert {"no_speedup", "scatter"} <= {one.kind for one in found}


def test_training_that_misses_its_target_is_told_and_replicates_are_not_explained(make_study):
    study = make_study()
    missed = study.add_training([5.0], accuracy=0.9, aggregator="ring", world_size=2)
    replicate = study.add(steps(10), aggregator="ring", world_size=2, aa_replicate=1)
    found = study.explained()
    assert [one.kind for one in found[missed]] == ["target"]
    assert replicate not in found


def documented():
    """Name -> (when, columns) of the rules in the document's table."""
    lines = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines()]
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


@pytest.mark.parametrize(
    ("reason", "then"),
    [("rank 0: out of memory: 2 GiB", "try a smaller local batch"), ("no tree", "fix the cause, then")],
)
def test_a_failed_cell_has_its_reason_and_what_its_kind_of_failure_asks_for(make_study, reason, then):
    study = make_study()
    cell = study.add([], aggregator="ring", world_size=2, state="failed")
    for record in study.cells[-1].records:
        record.reason = reason
    found = findings(study, cell)["failed"]
    assert next_experiment(found).startswith(then)


@pytest.mark.parametrize(("measured", "left"), [((), "1 or 5 or 25"), ((1, 25), "5"), ((1, 5, 25), "")])
def test_no_size_of_buckets_is_advised_that_was_measured(make_study, measured, left):
    study = make_study()
    pair = {"world_size": 2, "aggregator": "all_reduce", "step": "overlapped"}
    work = spans(("forward", 2), ("communicate", 8))
    cell = study.add(steps(10), spans=work, bucket_mb=50, **pair)
    for bucket_mb in measured:
        study.add(steps(10), spans=work, bucket_mb=bucket_mb, **pair)
    advice = next_experiment(findings(study, cell)["not_hidden"])
    assert advice.partition(";")[0] == (f"try bucket_mb={left}" if left else advice)


def test_what_to_try_goes_through_one_function_that_leaves_out_what_was_measured():
    """`untried`."""
    for template in FINDINGS.glob("*.j2"):
        text = re.sub(r"{#.*?#}", "", template.read_text(), flags=re.DOTALL)
        assert not re.findall(r"(?<!startswith\(\")\btry\b|compare (?:an|\w+=)", text), template.name


BATCHES = ({"local_batch": 32, "global_batch": 64}, {"local_batch": 64, "global_batch": 128})


@pytest.mark.parametrize(
    ("work", "cell", "others", "said"),
    [
        ([("forward", 2), ("communicate", 8)], {"step": "overlapped"}, BATCHES[1:],
         "try a local batch above 64"),
        ([("forward", 2), ("d2h", 2), ("reduce", 6)], {"aggregator": "host_serial"},
         [{"aggregator": "all_reduce"}, {"aggregator": "ring"}, BATCHES[1]], "try a local batch above 64"),
        ([("forward", 2), ("update", 8)], {}, BATCHES[1:], "try a local batch above 64"),
        ([("input", 8), ("forward", 2)], {"input_placement": "loader", "loader_workers": 2},
         [{"loader_workers": 8}], "try more than 8 loader_workers"),
        ([("input", 8), ("forward", 2)], {"input_placement": "loader", "loader_workers": 2, "device": "cuda"},
         [{"input_placement": "pinned", "loader_workers": None}], "try more loader_workers"),
        ([("input", 8), ("forward", 2)], {"input_placement": "loader", "loader_workers": 2, "device": "cuda"},
         [{"input_placement": "pinned", "loader_workers": None, "slower": 0.5},
          {"input_placement": "device", "loader_workers": None, "slower": 0.6}],
         "use input_placement=pinned: 5.00 ms; or try more loader_workers"),
        ([("forward", 9), ("backward", 1)], {}, [{"world_size": 4, "slower": 0.5}],
         "try more than 4 workers"),
        ([("forward", 2), ("communicate", 8)], {"aggregator": "tree"},
         [{"aggregator": "all_reduce", "step": "overlapped"}], "try a larger local batch (check"),
        ([("forward", 2), ("communicate", 8)], {"aggregator": "tree"},
         [{"aggregator": "all_reduce", "step": "overlapped", "slower": 0.5}],
         "use step=overlapped with all_reduce: 5.00 ms"),
        ([("forward", 2), ("encode", 8)], {"aggregator": "one_bit"}, [{"aggregator": "all_reduce"}], ""),
        ([("forward", 2), ("encode", 8)], {"aggregator": "one_bit"}, [],
         "try all_reduce, which has no codec"),
    ],
)  # fmt: skip
def test_no_advice_is_what_another_cell_of_the_study_has(make_study, work, cell, others, said):
    study = make_study()
    cell = {"world_size": 2, "aggregator": "ring", **BATCHES[0], **cell}
    cell_id = study.add(steps(10), spans=spans(*work), **cell)
    for other in others:
        slower = other.get("slower", 2)
        changed = {key: value for key, value in other.items() if key != "slower"}
        study.add(steps(10 * slower), spans=spans(("forward", 10 * slower)), **{**cell, **changed})
    advice = next_experiment(first(study, cell_id)) or ""
    assert advice.startswith(said)
    assert "input_placement" not in advice.removeprefix(said)
    assert said or next_experiment(first(study, cell_id)) is None
