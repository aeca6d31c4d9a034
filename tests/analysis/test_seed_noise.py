"""Accuracies beside the noise of seeds: what a further seed may differ by, and who lies beyond it."""

import math

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.seed_noise import seed_noise, seed_noise_finding
from scaling.analysis.summary import build_table
from scaling.report import write_report
from scaling.report.lossy_tables import seed_noise_tables
from scaling.report.text import text_of
from tests.made_studies import texts_of

SEEDS = (0.90, 0.92, 0.94)
NOISE = 4.302653 * 0.02 * math.sqrt(1 + 1 / 3)
"""Student's t of two degrees: the prediction interval of a further seed."""


@pytest.fixture
def train(study, epoch_line):
    """train(accuracy, **cell): a training of one epoch."""

    def make(accuracy, **cell):
        ranks = [[epoch_line(1, 1.0, 0.5, accuracy)]] * cell.get("world_size", 1)
        return study.add([ranks], kind="convergence", **cell)

    return make


@pytest.fixture
def seeded(train):
    """The ids of three seeds of one combination."""
    return [train(accuracy, seed=seed) for seed, accuracy in enumerate(SEEDS)]


def found(study, lossy=()):
    cells = {cell.cell_id: cell for cell in read_cells(study.folder)}
    for one in cells.values():
        one.cell["lossy"] = None if lossy is None else one.cell["aggregator"] in lossy
    return seed_noise(group_rows(to_rows(build_table("by-hand", [*cells.values()]))), cells)


def verdicts(noise):
    return {one.row["aggregator"]: one.verdict for one in noise.combinations}


TWO = {"world_size": 2}


@pytest.mark.parametrize(("trainings", "expected"), [
    ([("qsgd", (0.90, 0.91, 0.92), TWO), ("one_bit", (0.60, 0.61, 0.62), TWO)],
     {"none": "reference", "qsgd": "within", "one_bit": "worse"}),
    ([("qsgd", (0.601, 0.605, 0.609), TWO), ("one_bit", (0.1, 0.5, 0.9), TWO)],
     {"none": "reference", "one_bit": "within", "qsgd": "worse"}),
    ([("host_parallel", [0.92], {"step": "captured"}), ("ring", [0.92], {"batch": 128}),
      ("tree", [0.92], {"learning_rate": 0.5})], {"none": "within", "host_parallel": "within"}),
], ids=[
    "a loss beyond the noise is worse and a smaller one within", "a lossy one that diverges hides no other",
    "another step is of the same recipe and another batch or rate is not",
])  # fmt: skip
def test_combinations_are_judged_by_the_noise_of_their_recipe(study, train, seeded, trainings, expected):
    for name, accuracies, cell in trainings:
        for seed, accuracy in enumerate(accuracies):
            train(accuracy, aggregator=name, seed=seed, **cell)
    (one,) = found(study, lossy=("one_bit", "qsgd"))
    assert verdicts(one) == expected


def test_same_seed_is_compared_with_the_exact_ones_of_that_seed(study, train, seeded):
    train(0.91, aggregator="ring", seed=0)
    train(0.70, aggregator="tree", seed=9)
    train(0.95, aggregator="one_bit", seed=0, world_size=2)
    (noise,) = found(study, lossy=("one_bit",))
    at_equal_seed = {one.row["aggregator"]: one.at_equal_seed for one in noise.combinations}
    assert at_equal_seed["none"] == at_equal_seed["ring"] * -1 == pytest.approx(-0.01)
    assert (at_equal_seed["tree"], at_equal_seed["one_bit"]) == (None, pytest.approx(0.95 - 0.905))


def test_weak_scaling_compares_equal_global_batches_alone(study, train):
    for seed, accuracy in enumerate(SEEDS):
        train(accuracy, seed=seed, scaling="weak", world_size=2, aggregator="ring")
    train(0.92, scaling="weak", world_size=2, aggregator="tree")
    train(0.50, scaling="weak", world_size=4, aggregator="tree")
    (one,) = found(study)
    assert [other.row["world_size"] for other in one.combinations] == [2, 2]


def test_without_a_spread_nothing_is_said(study, train):
    train(0.9)
    train(0.8, aggregator="ring")
    assert found(study) == []
    train(0.9, seed=1)  # two equal accuracies: no spread to judge by
    assert found(study) == []


def test_lossy_ones_without_a_spread_of_exact_ones_are_said_to_be_untested(study, train):
    train(0.9)
    for seed, accuracy in enumerate(SEEDS):
        train(accuracy, seed=seed, aggregator="one_bit", world_size=2)
    noises = found(study, lossy=("one_bit",))
    (told,) = texts_of(map(seed_noise_finding, noises))
    assert "whether a lossy exchange changes the accuracy is not known" in told
    assert seed_noise_tables(noises) == []


@pytest.mark.usefixtures("without_figures")
def test_sentence_tells_exact_from_lossy(study, train, seeded):
    train(0.93, aggregator="ring", seed=0)
    train(0.10, aggregator="one_bit", world_size=2)
    train(0.92, aggregator="qsgd", world_size=2)
    (told,) = texts_of(map(seed_noise_finding, found(study, lossy=("one_bit", "qsgd"))))
    assert "2 exact combinations reach 92.50% (standard deviation over 3 seeds 2.00%)" in told
    assert f"in 95% of cases another seed is within {100 * NOISE:.2f} points of it" in told
    assert "All 2 exact combinations are within the noise of seeds: the furthest is" in told
    assert (
        "Of the lossy ones one_bit on 2 workers (worse by 82.50 points) is beyond the noise of seeds, the "
        "other 1 within it: qsgd on 2 workers (-0.50 points; up to"
    ) in told
    assert "of the same seed, exact ones differ by 3.00 points at most" in told
    page = write_report(study.folder).page.read_text()
    assert "Accuracy compared with the noise of seeds" in page
    assert "is the accuracy the same?" in page


@pytest.mark.parametrize(("sizes", "lossy", "expected"), [
    ((1, 2), ("one_bit",), [False, False, True]), ((2,), None, [False, True]),
])  # fmt: skip
def test_lossy_is_what_its_name_says_on_several_workers(study, train, seeded, sizes, lossy, expected):
    for size in sizes:
        train(0.93, aggregator="one_bit", world_size=size)
    assert [one.is_lossy for one in found(study, lossy)[0].combinations] == expected


def test_table_has_a_row_for_each_combination_and_its_cells(study, train, seeded):
    other = train(0.30, aggregator="one_bit", seed=0, world_size=2)
    (one,) = found(study, lossy=("one_bit",))
    assert (one.mean, one.spread, one.noise) == pytest.approx((0.92, 0.02, NOISE))
    (table,) = seed_noise_tables([one])
    first, second = table.rows
    assert first == ["none", "1", "eager", "none", "3", "92.00%", "–", "–", "reference", "–"]  # noqa: RUF001
    assert second[:7] == ["one_bit", "2", "eager", "lossy", "1", "30.00%", "-62.00"]
    assert second[8:] == ["worse", "-60.00"]
    assert 0 < float(second[7]) < 62
    assert table.cells == [seeded, [other]]
    assert "Exact: 92.00%, standard deviation 2.00 points." in table.statistic


@pytest.mark.usefixtures("without_figures")
def test_trainings_on_text_are_compared_by_bits_per_byte(study, epoch_line):
    def train(bits, **cell):
        ranks = [[epoch_line(1, 1.0, bits * math.log(2), 0.5)]] * cell.get("world_size", 1)
        study.add([ranks], kind="convergence", dataset="text", **cell)

    for seed, bits in enumerate((2.2, 2.3, 2.4)):
        train(bits, seed=seed)
    train(4.0, aggregator="one_bit", world_size=2)
    train(2.31, aggregator="ring", world_size=2)
    (noise,) = found(study, lossy=("one_bit",))
    assert (noise.score, round(noise.mean, 6), round(noise.spread, 6)) == ("bits_per_byte", 2.318333, 0.1)
    assert verdicts(noise) == {"none": "within", "one_bit": "worse", "ring": "within"}
    expected = "Does compression cost accuracy? Worse, in bits per byte: one_bit on 2 workers (+1.68)."
    assert text_of(seed_noise_finding(noise), "headline") == expected
    (table,) = seed_noise_tables([noise])
    assert "bits per byte" in table.headings
    assert [row[5] for row in table.rows] == ["2.300", "2.310", "4.000"]
    page = write_report(study.folder).page.read_text()
    # To the folder's own cells all three are exact.
    assert "Is the accuracy the same? Worse, in bits per byte: one_bit on 2 workers (+1.68)." in page
    assert "No difference beyond the noise of 3 seeds: none on 1 worker and ring on 2 workers." in page


def test_a_text_training_that_diverged_is_left_out_of_the_others_comparison(study, epoch_line):
    for seed, loss in enumerate((1.5, 1.6, 1.7)):
        study.add([[[epoch_line(1, 1.0, loss, 0.5)]]], kind="convergence", dataset="text", seed=seed)
    for name, loss in (("ring", 1.6), ("tree", math.nan)):
        ranks = [[epoch_line(1, 1.0, loss, 0.5)]] * 2
        study.add([ranks], kind="convergence", dataset="text", aggregator=name, world_size=2)
    (noise,) = found(study)
    assert (noise.score, verdicts(noise)) == ("bits_per_byte", {"none": "within", "ring": "within"})
