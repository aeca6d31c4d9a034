"""Accuracies beside the noise of seeds: what a further seed may differ by, and who lies beyond it."""

import math

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.seed_noise import noise_bound, seed_noise, seed_noise_finding
from scaling.analysis.summary import build_table
from scaling.report import write_report
from scaling.report.seed_noise_table import seed_noise_tables
from scaling.report.text import text_of
from tests.made_studies import texts_of

T_OF_TWO_DEGREES = 4.302653
SEEDS = (0.90, 0.92, 0.94)
NOISE = T_OF_TWO_DEGREES * 0.02 * math.sqrt(1 + 1 / 3)


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
        one.cell["lossy"] = one.cell["aggregator"] in lossy
    return seed_noise(group_rows(to_rows(build_table("by-hand", [*cells.values()]))), cells)


def test_bound_is_the_prediction_interval_of_a_further_seed():
    assert noise_bound(0.02, 3) == pytest.approx(NOISE, rel=1e-6)
    assert noise_bound(0.02, 3, 3) == pytest.approx(T_OF_TWO_DEGREES * 0.02 * math.sqrt(2 / 3), rel=1e-6)


def test_about_one_further_seed_in_twenty_lies_beyond_the_bound():
    import numpy as np

    draws = np.random.default_rng(1).normal(0.9, 0.01, size=(4000, 4))
    beyond = [abs(one[3] - one[:3].mean()) > noise_bound(one[:3].std(ddof=1), 3) for one in draws]
    assert np.mean(beyond) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(
    ("accuracy", "is_within"), [(0.92 - 0.99 * NOISE, True), (0.92 - 1.01 * NOISE, False)]
)
def test_other_is_within_the_noise_or_beyond(study, train, seeded, accuracy, is_within):
    train(accuracy, aggregator="ring", world_size=2)
    (one,) = found(study)
    assert one.noise == pytest.approx(NOISE)
    (other,) = one.others
    assert (other.row["aggregator"], other.is_within, other.is_lossy) == ("ring", is_within, False)


def test_same_seed_is_compared_with_the_references_own(study, train, seeded):
    train(0.91, aggregator="ring", seed=0)
    train(0.70, aggregator="tree", seed=9)
    ring, tree = found(study)[0].others
    assert ring.at_equal_seed == pytest.approx(0.01)
    assert tree.at_equal_seed is None


def test_another_step_is_of_the_same_recipe_and_another_batch_or_rate_is_not(study, train, seeded):
    train(0.92, aggregator="host_parallel", step="captured")
    train(0.92, aggregator="ring", batch=128)
    train(0.92, aggregator="tree", learning_rate=0.5)
    (one,) = found(study)
    assert [other.row["aggregator"] for other in one.others] == ["host_parallel"]


def test_weak_scaling_compares_equal_global_batches_alone(study, train):
    for seed, accuracy in enumerate(SEEDS):
        train(accuracy, seed=seed, scaling="weak", world_size=2, aggregator="ring")
    train(0.92, scaling="weak", world_size=2, aggregator="tree")
    train(0.50, scaling="weak", world_size=4, aggregator="tree")
    (one,) = found(study)
    assert [other.row["world_size"] for other in one.others] == [2]


def test_without_a_spread_nothing_is_said(study, train):
    train(0.9)
    train(0.8, aggregator="ring")
    assert found(study) == []
    train(0.9, seed=1)  # two equal accuracies: no spread to judge by
    assert found(study) == []


def test_sentence_tells_exact_from_lossy(study, train, seeded):
    train(0.93, aggregator="ring", seed=0)
    train(0.70, aggregator="one_bit", world_size=2)
    (told,) = texts_of(map(seed_noise_finding, found(study, lossy=("one_bit",))))
    assert "none on 1 worker reaches 92.00% (standard deviation over 3 seeds 2.00%)" in told
    assert "in 95% of cases another seed is within 9.94 points of it" in told
    assert "The exact ring on 1 worker is within that noise (+1.00 points)." in told
    assert "Of the lossy ones one_bit on 2 workers (worse by 22.00 points) is beyond that noise." in told
    assert "of the same seed, exact ones differ by 3.00 points at most" in told


def test_of_equal_numbers_of_seeds_an_exact_one_is_the_reference(study, train, seeded):
    """Else a lossy one that diverges with one seed would make every difference a noise."""
    for seed, accuracy in enumerate((0.1, 0.5, 0.9)):
        train(accuracy, seed=seed, aggregator="one_bit", world_size=2)
    (one,) = found(study, lossy=("one_bit",))
    assert (one.reference["aggregator"], one.is_lossy) == ("none", False)
    assert one.others[0].row["aggregator"] == "one_bit"
    assert not one.others[0].is_within


def test_beside_a_lossy_reference_the_lossy_ones_are_the_others(study, train):
    for seed, accuracy in enumerate(SEEDS):
        train(accuracy, seed=seed, aggregator="one_bit", world_size=2)
    for name in ("ring", "tree", "top_k", "qsgd"):
        train(0.92, aggregator=name, world_size=2)
    (told,) = texts_of(map(seed_noise_finding, found(study, lossy=("one_bit", "top_k", "qsgd"))))
    assert "All 2 exact combinations are within that noise" in told
    assert "All 2 other lossy combinations are within that noise" in told


def test_lossy_aggregator_loses_nothing_on_one_worker(study, train, seeded):
    train(0.93, aggregator="one_bit")
    train(0.93, aggregator="one_bit", world_size=2)
    assert [other.is_lossy for other in found(study, lossy=("one_bit",))[0].others] == [False, True]


def test_table_has_the_reference_first_and_the_cells_of_every_row(study, train, seeded):
    other = train(0.93, aggregator="ring", seed=0)
    (table,) = seed_noise_tables(found(study))
    assert table.rows == [
        ["none", "1", "eager", "reference", "3", "92.00% ± 2.00", "–", "9.94", "–", "–"],  # noqa: RUF001
        ["ring", "1", "eager", "none", "1", "93.00%", "+1.00", "9.94", "within", "+3.00"],
    ]
    assert table.cells == [seeded, [other]]


def test_page_shows_both(study, train, seeded):
    train(0.93, aggregator="ring", seed=0)
    write_report(study.folder)
    page = (study.folder.path / "report.html").read_text()
    assert "Accuracy compared with the noise of seeds" in page
    assert "is the accuracy the same?" in page


def test_trainings_on_text_are_compared_by_bits_per_byte(study, epoch_line):
    def train(bits, **cell):
        line = epoch_line(1, 1.0, bits * math.log(2), 0.5)
        ranks = [[line]] * cell.get("world_size", 1)
        study.add([ranks], kind="convergence", dataset="text", **cell)

    for seed, bits in enumerate((2.2, 2.3, 2.4)):
        train(bits, seed=seed)
    train(4.0, aggregator="one_bit", world_size=2)
    train(2.31, aggregator="ring", world_size=2)
    (noise,) = found(study, lossy=("one_bit",))
    assert (noise.score, round(noise.mean, 6), round(noise.spread, 6)) == ("bits_per_byte", 2.3, 0.1)
    assert {other.row["aggregator"]: other.verdict for other in noise.others} == {
        "one_bit": "worse",
        "ring": "within",
    }
    assert text_of(seed_noise_finding(noise), "headline") == (
        "Does compression cost accuracy? The reference is none on 1 worker (2.30 bits per byte, 3 seeds; "
        "less is better). Worse: one_bit on 2 workers (+1.70). "
        "The same within the noise of seeds: ring on 2 workers (+0.01)."
    )
    (table,) = seed_noise_tables([noise])
    assert "bits per byte" in table.headings
    assert table.rows[0][5] == "2.300 ± 0.100"
    write_report(study.folder)
    page = (study.folder.path / "report.html").read_text()
    assert "Is the accuracy the same? The reference is none on 1 worker (2.30 bits per byte" in page


def test_a_text_training_that_diverged_is_left_out_of_the_others_comparison(study, epoch_line):
    for seed, loss in enumerate((1.5, 1.6, 1.7)):
        study.add([[[epoch_line(1, 1.0, loss, 0.5)]]], kind="convergence", dataset="text", seed=seed)
    for name, loss in (("ring", 1.6), ("tree", math.nan)):
        ranks = [[epoch_line(1, 1.0, loss, 0.5)]] * 2
        study.add([ranks], kind="convergence", dataset="text", aggregator=name, world_size=2)
    (noise,) = found(study)
    assert noise.score == "bits_per_byte"
    assert [other.row["aggregator"] for other in noise.others] == ["ring"]
