"""The summary against answers worked out by hand."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest

from scaling.analysis.columns import BUDGET_COLUMNS, columns, safe_cell
from scaling.analysis.groups import group_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import summary_table, table_csv
from scaling.errors import StoreError
from scaling.report.text import title_of
from tests.made_studies import epoch, iteration, row_with, rows_of


def test_steps_are_of_the_slowest_rank_aligned_by_iteration_without_warm_up(study, line):
    # Rank 1 wrote its lines in another order: sorted by time, or with the warm-up, the times are others.
    rank_0 = [line(0, 9.0, warmup=True), line(1, 1.0), line(2, 5.0), line(3, 1.0)]
    rank_1 = [line(3, 4.0), line(1, 2.0), line(2, 1.0), line(0, 9.0, warmup=True)]
    study.add([[rank_0, rank_1]], aggregator="ring", world_size=2)

    launch = read_cells(study.folder)[0].launches[0]
    assert (launch.step_s.tolist(), launch.rank_steps_s.tolist()) == (
        [2.0, 5.0, 4.0], [[1.0, 5.0, 1.0], [2.0, 1.0, 4.0]],
    )  # fmt: skip
    (row,) = rows_of(study)
    assert (row["typical_iteration_s"], row["iterations"]) == (4.0, 3)
    assert (row["iteration_s"], row["samples_per_s"]) == (pytest.approx(11 / 3), pytest.approx(64 * 3 / 11))
    assert row["iteration_form"] == "mean of steps"


GPT_TENSORS = "256x48 64x48 48 48 144x48"
"""Of gpt, size nano, with a context of 64."""


@pytest.mark.parametrize(("model", "summary", "tokens_per_s"), [
    ("mine:decoder", {"tokens_per_sample": 10}, 160.0),
    ("gpt", {"tokens_per_sample": 10, "tensor_shapes": GPT_TENSORS}, 160.0),
    ("gpt", {"tensor_shapes": GPT_TENSORS}, 64 * 16.0),
    ("gpt", {"tensor_shapes": "256x48 48 48 144x48"}, None),
    ("gpt", {}, None),
    ("fcn-r", {"tokens_per_sample": None, "tensor_shapes": GPT_TENSORS}, None),
])  # fmt: skip
def test_tokens_a_second_come_from_what_the_runs_recorded(study, line, model, summary, tokens_per_s):
    row = row_with(study, [[[line(0, 4.0)]]], summary=summary, model=model)
    assert (row["samples_per_s"], row["tokens_per_s"]) == (16.0, tokens_per_s)


def matrix_rate(flops_per_s, size=4096):
    return {"flops_per_s": flops_per_s, "low": 0.9, "high": 9e9, "size": size, "num_samples": 5}


def phases(step_s, **seconds):
    return [iteration(i, step_s, **seconds) for i in range(3)]


STEP = [iteration(0, 4.0)]
RATES = {"matrix_rate": [matrix_rate(60.0), matrix_rate(100.0, 8192)]}
NO_MFU = dict.fromkeys(("mfu", "matrix_flops_per_s", "matrix_size"))
PAIR = {"aggregator": "ring", "world_size": 2}
TRAINED = {"kind": "convergence", "target_accuracy": 0.9}
approx = pytest.approx
ROWS = {
    "MFU is the model's FLOPs over those of all workers' matrix products": ([[STEP] * 2] * 2,
     {"summary": {"model_flops": 320, **RATES}, "world_size": 2},
     {"flops_per_s_per_worker": 40.0, "mfu": 0.5, "matrix_flops_per_s": 80.0, "matrix_size": "4096 | 8192"}),
    **{f"MFU is empty {why}": ([[STEP] * 2], {"summary": known, "world_size": 2}, NO_MFU) for why, known in (
     ("without rates", {"model_flops": 320}), ("without FLOPs", {"matrix_rate": [matrix_rate(60.0)]}),
     ("where a rank lacks it", {"model_flops": 320, "matrix_rate": [matrix_rate(60.0), None]}))},
    "the budget is that of the rank that the others wait for": (
     [[phases(2.0, forward_s=0.5, d2h_s=0.1, wait_s=1.4),
       phases(1.9, forward_s=0.5, d2h_s=0.1, reduce_s=1.2, wait_s=0.1)]],
     {"aggregator": "host_serial", "world_size": 2},
     {"iteration_s": 2.0, "reduce_s": approx(1.2), "wait_s": approx(0.1), "exposed_comm_s": None,
      "profiled_iteration_s": approx(1.9), "exchange_overhead_s": approx(1.4)}),
    "the budget is that of the slowest rank where nobody waits": (
     [[phases(1.0, forward_s=0.1), phases(2.0, forward_s=0.5)]], {"world_size": 2},
     {"forward_s": 0.5, "unattributed_s": 1.5, "exchange_overhead_s": None}),
    "a phase that an iteration lacks counts as zero only if the cell has it": (
     [[[iteration(0, 1.0, reduce_s=0.3), iteration(1, 1.0, input_s=0.3), iteration(2, 1.0, input_s=0.6)]]],
     {}, {"reduce_s": approx(0.1), "input_s": approx(0.3), "encode_s": None}),
    "bytes are the largest of all ranks and precision has its name": ([[STEP] * 4],
     {"aggregator": "ring", "world_size": 4, "tf32": True, "device": "cuda", "peer_access": True,
      "summary": {"wire_bytes_per_rank": [100, 300, 200, 0]}},
     {"wire_bytes_per_rank": 300, "precision": "tf32", "peer_access": True, "launcher": "local",
      "study": "by-hand", "hosts": "here"}),
    "trainings have medians over repeats and no times per iteration": (
     [[[epoch(1, seconds, 2.0, 0.5), epoch(2, 2 * seconds, 1.0, last)]]
      for last, seconds in ((0.90, 10.0), (0.94, 12.0), (0.92, 11.0))],
     {"summary": {"wire_bytes_per_rank": [7]}, **TRAINED},
     {"epochs": 2, "train_loss": 1.0, "final_test_accuracy": 0.92, "seconds_to_target": 22.0,
      "target_accuracy": 0.9, "train_s": 22.0,
      **dict.fromkeys(("iteration_s", "iterations", "speedup", "forward_s"))}),
    "seconds to the target are empty if one repeat never reaches it": (
     [[[epoch(1, 10.0, 2.0, accuracy)]] for accuracy in (0.95, 0.80)], TRAINED,
     {"seconds_to_target": None, "final_test_accuracy": approx(0.875)}),
    "seconds of a training are those of the slowest rank": (
     [[[epoch(1, 10.0, 2.0, 0.95)], [{"epoch": 1, "train_s": 12.0}]]], {**TRAINED, **PAIR},
     {"train_s": 12.0, "seconds_to_target": 12.0}),
    "a loss that was not finite is empty and noted": (
     [[[epoch(1, 1.0, 2.0, 0.5), epoch(2, 2.0, None, None)]]], TRAINED,
     {**dict.fromkeys(("train_loss", "final_test_accuracy", "seconds_to_target")),
      "notes": "diverged: the training loss was not finite in 1 of 1 repeats"}),
}  # fmt: skip


@pytest.mark.parametrize(("runs", "cell", "expected"), ROWS.values(), ids=ROWS)
def test_row_has_what_the_runs_recorded(study, runs, cell, expected):
    row = row_with(study, runs, **cell)
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(("gpus", "cell", "peak"), [
    (["NVIDIA H200"] * 2, {}, 66.9e12), (["NVIDIA H200", "NVIDIA H100 PCIe"], {}, None),
    (["Some GPU"], {}, None), (["NVIDIA H200"], {"workers_per_gpu": 2}, None),
    (["NVIDIA H200"], {"device": "cpu"}, None),
])  # fmt: skip
def test_mfu_by_the_data_sheet_is_known_for_one_known_gpu_a_worker(study, line, gpus, cell, peak):
    study.folder.write_environment({"gpus": [{"name": name} for name in gpus]})
    summary = {"model_flops": 669 * 10**11, "matrix_rate": [matrix_rate(50e12)] * 2}
    row = row_with(study, [[[line(0, 4.0)]] * 2], summary=summary, world_size=2, **{"device": "cuda", **cell})
    assert row["mfu"] == pytest.approx(66.9 / 2 / 4 / 50)
    shown = (row["mfu_data_sheet"], row["data_sheet_flops_per_s"])
    assert shown == ((None, None) if peak is None else pytest.approx((1 / 8, peak)))


def test_values_that_do_not_exist_are_empty_in_the_file_and_never_zero(study, line):
    study.add([[[line(0, 1.0, forward_s=0.96)]]])
    (written,) = csv.DictReader(io.StringIO(table_csv(summary_table(study.folder))))
    empty = (
        *("iteration_s_low", "exposed_comm_s", "hidden_comm_s", "bucket_mb", "loader_workers", "skew_s"),
        *("profiling_overhead_s", "exposed_by_difference_s", "exposed_check", "noise_floor", "warnings"),
        *("joules_per_sample", "memory_peak_bytes", "h2d_s", "peer_access", "num_nodes", "epochs", "reason"),
        *("final_test_accuracy", "train_s", "wire_bytes_per_rank", "notes"),
    )
    assert {name: written[name] for name in empty} == dict.fromkeys(empty, "")
    shown = [written[name] for name in ("forward_s", "input_placement", "aa_replicate")]
    assert shown == ["0.96", "device", "0"]


def test_interval_of_a_single_cell_is_students_t_on_its_launches_times(study):
    study.add_steps([[1.0, 0.5, 1.5], [2.0, 4.0, 0.0], [4.0, 4.0, 4.0]])
    (row,) = rows_of(study)
    # ln 1, ln 2, ln 4: mean ln 2, standard deviation ln 2, t(0.975, 2 degrees of freedom) = 4.30265.
    factor = 2 ** (4.302652729911275 / np.sqrt(3))
    assert row["iteration_s_low"] == pytest.approx(2 / factor)
    assert row["iteration_s_high"] == pytest.approx(2 * factor)
    assert row["interval_method"] == "moderated t interval over launches"
    assert (row["repeats"], row["iterations"]) == (3, 9)


@pytest.mark.parametrize(("scaling", "step_s", "speedup"), [
    ("strong", 2.0, 2.0), ("weak", 4.0, 4.0), ("weak", 8.0, 2.0),
])  # fmt: skip
def test_speedup_is_the_ratio_of_throughput_to_one_worker_without_exchange(study, scaling, step_s, speedup):
    study.add_steps([[4.0]], scaling=scaling)
    study.add_steps([[step_s]], scaling=scaling, aggregator="ring", world_size=4)
    baseline, row = rows_of(study)
    assert (baseline["speedup"], baseline["parallel_efficiency"]) == (1.0, 1.0)
    assert (row["speedup"], row["parallel_efficiency"]) == pytest.approx((speedup, speedup / 4))


@pytest.mark.parametrize("other", [
    *({"batch": 128}, {"model": "fcn-r"}, {"model_parameters": {"hidden": 3}}, {"dataset": "mnist"}),
    *({"device": "cuda"}, {"tf32": True}, {"memory_format": "channels_last"}),
    *({"augmentation": "standard"}, {"threads": 2}, {"scaling": "weak"}, {"learning_rate": 0.1}),
    *({"momentum": 0.0}, {"weight_decay": 0.1}, {"nesterov": True}, {"seed": 1}, {"aggregator": "ring"}),
    *({"world_size": 2}, {"input_placement": "pinned"}, {"aa_replicate": 1}),
], ids=str)  # fmt: skip
def test_speedup_is_empty_without_an_equal_baseline(study, other):
    study.add_steps([[4.0]], **other)
    own = study.add_steps([[2.0]], aggregator="tree", world_size=4)
    (row,) = [row for row in rows_of(study) if row["cell_id"] == own]
    assert (row["speedup"], row["parallel_efficiency"]) == (None, None)


def test_memory_formats_are_tables_of_their_own_and_folders_without_the_key_are_contiguous(study):
    study.add_steps([[4.0]])
    study.add_steps([[3.0]], memory_format="channels_last")
    study.add_steps([[2.0]], aggregator="ring", world_size=2, memory_format="channels_last")
    rows = rows_of(study)
    assert [row["memory_format"] for row in rows] == ["channels_last", "contiguous", "channels_last"]
    assert [row["speedup"] for row in rows] == pytest.approx([1.0, 1.0, 1.5])
    titles = [title_of(group.given) for group in group_rows(rows)]
    assert [title.rsplit(", ", 1)[1] for title in titles] == ["channels_last", "contiguous"]


def test_augmented_timings_are_tables_of_their_own_and_plain_ones_have_an_empty_column(study):
    study.add_steps([[4.0]])
    study.add_steps([[2.0]], aggregator="ring", world_size=2)
    study.add_steps([[6.0]], augmentation="standard")
    study.add_steps([[2.0]], aggregator="ring", world_size=2, augmentation="standard")
    rows = rows_of(study)
    assert [row["augmentation"] for row in rows] == [None, "standard", None, "standard"]
    assert [row["speedup"] for row in rows] == [1.0, 1.0, 2.0, 3.0]
    of = {title_of(group.given): {one["augmentation"] for one in group.rows} for group in group_rows(rows)}
    ends = {title.rsplit(", ", 1)[1]: own for title, own in of.items()}
    assert ends == {"augmentation none": {None}, "augmentation standard": {"standard"}}
    assert len({group.slug for group in group_rows(rows)}) == 2


def test_baseline_may_have_another_peer_access_but_its_own_is_preferred(study):
    study.add_steps([[4.0]], peer_access=True)
    only_on = study.add_steps([[2.0]], aggregator="ring", world_size=2, peer_access=False)
    assert {row["cell_id"]: row["speedup"] for row in rows_of(study)}[only_on] == 2.0
    study.add_steps([[6.0]], peer_access=False)
    assert {row["cell_id"]: row["speedup"] for row in rows_of(study)}[only_on] == 3.0


def test_planned_baseline_gives_no_speedup(study):
    study.add(["planned"])
    study.add_steps([[2.0]], aggregator="ring", world_size=2)
    assert [row["speedup"] for row in rows_of(study)] == [None, None]


@pytest.mark.parametrize(("states", "expected"), [
    (["planned", "planned"], "planned"), (["running", "planned"], "running"),
    (["failed: out of memory", "running"], "failed"),
    (["done", "planned"], "planned"), (["done", "done"], "done"),
])  # fmt: skip
def test_state_of_a_cell_is_the_worst_of_its_repeats(study, line, states, expected):
    row = row_with(study, [[[line(0, 1.0)]] if state == "done" else state for state in states])
    assert (row["state"], row["repeats"]) == (expected, states.count("done"))
    assert row["iteration_s"] == (1.0 if "done" in states else None)
    assert row["reason"] == ("out of memory" if expected == "failed" else None)


def test_rows_are_in_the_order_of_kind_batch_aggregator_and_world_size(study):
    for aggregator in ("one_bit", "tree", "host_serial", "none", "all_reduce"):
        for size in (2, 1):
            study.add(["planned"], aggregator=aggregator, world_size=size)
    study.add(["planned"], batch=8)
    study.add(["planned"], kind="convergence")
    names = ("kind", "global_batch", "aggregator", "world_size")
    shown = [tuple(row[name] for name in names) for row in rows_of(study)]
    order = ["none", "all_reduce", "tree", "host_serial", "one_bit"]
    expected = [("iteration", 64, name, size) for name in order for size in (1, 2)]
    assert shown == [("iteration", 8, "none", 1), *expected, ("convergence", 64, "none", 1)]


def test_csv_round_trips_with_commas_quotes_and_line_breaks(study):
    label = 'mlp(hidden=[10, 20], name="a")'
    study.add(["failed: no memory,\nnone at all"], model_label=label)
    text = table_csv(summary_table(study.folder))
    header, *_ = text.split("\r\n")
    assert (header, text.endswith("\r\n")) == (",".join(columns()), True)
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["model"], row["reason"]) == (label, "no memory,\nnone at all")
    (again,) = pd.read_csv(io.StringIO(text)).to_dict("records")
    assert (again["model"], again["aggregator"], again["global_batch"]) == (label, "none", 64)


LINE = {"iteration": 0, "warmup": False, "step_s": 1.0}


@pytest.mark.parametrize(("ranks", "message"), [
    ([[LINE]], "samples of 1 ranks"),
    ([[LINE], []], "ranks 0 and 1 recorded different"),
    ([[LINE] * 2] * 2, "recorded twice"),
    ([[{**LINE, "warmup": True}]] * 2, "no measured iteration was recorded; delete its run"),
    ([[{"iteration": 0, "step_s": 1.0}]] * 2, "warmup is missing"),
    ([[{"iteration": 0, "warmup": False}]] * 2, "step_s is missing"),
    ([[{**LINE, "step_s": -1.0}]] * 2, "greater than or equal to 0"),
    ([[{**LINE, "step_s": None}]] * 2, "valid number"),
    ([[{**LINE, "warmup": 0}]] * 2, "valid boolean"),
    ([[{**LINE, "iteration": "a"}]] * 2, "valid integer"),
    ([[[1, 2]]] * 2, "should be an object"),
])  # fmt: skip
def test_damaged_samples_of_a_done_run_are_an_error_that_names_the_run(study, ranks, message):
    cell_id = study.add([ranks], aggregator="ring", world_size=2)
    with pytest.raises(StoreError, match=message) as caught:
        summary_table(study.folder)
    assert f"{cell_id}/0" in str(caught.value)


def test_missing_cell_variable_is_an_error(study):
    path = study.folder.path / "runs" / study.add(["planned"]) / "0" / "run.json"
    record = json.loads(path.read_text())
    del record["cell"]["world_size"]
    path.write_text(json.dumps(record))
    with pytest.raises(StoreError, match="lacks world_size"):
        summary_table(study.folder)


def test_columns_come_in_their_order_with_phases_after_the_copies_also_without_any_cell(study):
    table = summary_table(study.folder)
    assert (len(table), list(table.columns)) == (0, list(columns()))
    study.add(["planned"])
    names = list(summary_table(study.folder).columns)
    assert names == list(columns())
    assert names[:6] == ["study", "kind", "model", "dataset", "aggregator", "step"]
    start = names.index("wire_bytes_per_rank")
    parts = ["h2d_s", "d2h_s", "input_s", "forward_s", "backward_s", "encode_s", "decode_s", "reduce_s"]
    assert (names[start - 1], names[start + 1 : start + 9]) == ("exposed_comm_s", parts)
    assert set(BUDGET_COLUMNS) <= set(names)


FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "  =1")


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_begins_like_a_formula_is_kept_a_text(text):
    assert safe_cell(text).startswith("'")


@pytest.mark.parametrize("value", [-1.5, 3, None, True, "ring", "one_bit(threshold=mean)", "-2.5", "a=1", ""])
def test_numbers_and_other_texts_are_left_alone_but_control_characters_are_escapes(value):
    assert safe_cell(value) is value
    assert safe_cell("a\x1b[31m") == "a\\x1b[31m"


def test_table_has_no_formula_in_a_row_or_a_heading_and_missing_values_stay_empty():
    table = pd.DataFrame({"=name": FORMULAS, "value": [-1.0] * len(FORMULAS)})
    heading, *rows = csv.reader(io.StringIO(table_csv(table)))
    assert heading == ["'=name", "value"]
    assert all(row[0].startswith("'") and row[1] == "-1.0" for row in rows)
    assert len(rows) == len(FORMULAS)
    table = pd.DataFrame({"name": pd.array(["=a", None], dtype="string")})
    assert table_csv(table) == 'name\r\n\'=a\r\n""\r\n'
