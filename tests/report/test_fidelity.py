"""Lossy aggregators beside exact ones, from the cells of one folder."""

from scaling.report.figures.training import target_bars
from scaling.report.lossy_tables import fidelity_tables, sheet_tables
from tests.report.conftest import cells_of, groups_of


def tables(study):
    return fidelity_tables(groups_of(study), cells_of(study))


def add(study, aggregator, step_s, sent, *, size=2, **phases):
    lines = [{"iteration": i, "warmup": False, "step_s": step_s, **phases} for i in range(8)]
    summary = {"wire_bytes_per_rank": [sent] * size}
    cell = {"aggregator": aggregator, "world_size": size, "lossy": aggregator.startswith("one_bit")}
    return study.add([[lines] * size], summary=summary, **cell)


def test_bytes_coding_and_time_stand_beside_those_of_the_exact_aggregator(study):
    exact = add(study, "all_reduce", 0.010, 32_000_000)
    add(study, "ring", 0.009, 32_000_000)
    own = add(study, "one_bit", 0.020, 1_000_000, encode_s=0.003, decode_s=0.002)
    (table,) = tables(study)
    expected = [["one_bit", "all_reduce", "2", "1.00", "32.0", "3.1%", "5.00", "20.0", "10.0", "200.0%"]]
    assert table.rows == expected
    assert (table.cells, "was not measured in this study" in table.remarks[0]) == ([[own, exact]], True)


def test_without_all_reduce_the_fastest_exact_one_of_that_size_is_taken_and_never_the_control_arm(study):
    add(study, "ring", 0.001, 32_000_000, size=4)
    assert tables(study) == [], "a study without a lossy aggregator has no sheet"
    add(study, "one_bit", 0.020, 1_000_000)
    assert tables(study)[0].rows[0][1] == "–"  # noqa: RUF001
    add(study, "none", 0.001, 0)
    add(study, "tree", 0.012, 32_000_000)
    add(study, "ring", 0.011, 32_000_000)
    (table,) = tables(study)
    assert table.rows[0][:3] == ["one_bit", "ring", "2"]


def test_accuracy_is_set_beside_that_of_the_exact_training(study, epoch_line):
    for aggregator, accuracy in (("all_reduce", 0.980), ("one_bit", 0.975)):
        lines = [epoch_line(1, 1.0, 0.5, accuracy)]
        lossy = aggregator == "one_bit"
        study.add([[lines] * 2], kind="convergence", aggregator=aggregator, world_size=2, lossy=lossy)
    (table,) = tables(study)
    assert (table.rows[0][-3:], list(table.remarks)) == (["97.50%", "98.00%", "-0.50"], [])


def test_target_bars_tell_what_was_reached_and_what_was_not(study, epoch_line):
    for aggregator, accuracy in (("ring", 0.96), ("tree", 0.90)):
        study.add(
            [[[epoch_line(1, 1.5, 0.5, accuracy)]]],
            kind="convergence", aggregator=aggregator, target_accuracy=0.95,
        )  # fmt: skip
    (group,) = groups_of(study)
    ring, tree = target_bars(group)
    assert (ring.name, ring.seconds, ring.state, tree.seconds) == ("ring, 1 worker", 1.5, "reached", None)
    assert tree.state.startswith("not reached")


SHEET = {
    **{"world_size": 4, "num_steps": 50, "trained_on": "digits", "measured_on": "a CPU"},
    **{"first_error_ratio": 0.5, "sum_error_ratio": 0.0125, "replicas_agree": True, "replicas_off_by": 0.0},
    **{"metered_bytes": 1000, "exact_bytes": 32_000, "encode_bytes_per_s": 2e9, "decode_bytes_per_s": None},
    **{"break_even_bytes_per_s": 0.25e9, "host_us_per_bucket": 1234.4},
}


def test_sheets_of_the_folder_are_a_table_of_the_lossy_section(study):
    assert sheet_tables(study.folder.sheets()) == []
    study.folder.write_sheet("one_bit", SHEET)
    study.folder.write_sheet("sign", {**SHEET, "replicas_agree": False, "replicas_off_by": 0.25})
    (table,) = sheet_tables(study.folder.sheets())
    common = ["1,000", "32,000", "2", "–", "1,234", "0.25", "a CPU"]  # noqa: RUF001
    agreement = {"one_bit": "the same bits", "sign": "off by 0.25"}
    assert table.rows == [[name, "0.5", "0.0125", said, *common] for name, said in agreement.items()]
    assert table.section == "lossy"
    assert all(len(row) == len(table.headings) for row in table.rows)
