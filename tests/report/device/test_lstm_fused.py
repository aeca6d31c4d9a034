"""What the report says of implementations and precisions: rates, pairs of seeds, and the verdict."""

import pytest

from scaling.report.device import device_tables, figures
from scaling.report.device.accuracy import comparisons
from scaling.report.formats import MISSING
from tests.report.device.conftest import sentences_of


@pytest.fixture
def results(results_of):
    settings = {"width": 8, "accuracy_width": 8, "accuracy_batch": 128, "steps": 5, "seeds": [1, 2, 3]}
    return lambda *cells, **more: results_of("lstm-fused", cells, **settings, **more)


def cell(way, precision, scores=None, *, batch=128, seconds=((0.1,) * 7,), device="cpu", **facts):
    """A cell with the accuracy of each seed."""
    rows = [{"fact": "accuracy_by_seed", "x": [*scores], "y": [*scores.values()]}] if scores else []
    facts = {"test_samples": 1000, "logit_difference": 1e-7, **facts}
    point = {"task": "mnist-rows", "implementation": way, "precision": precision, "width": 8, "batch": batch}
    return {"launches": seconds, "device": device, "facts": facts, "extra": rows, **point}


REFERENCE = {1: 0.90, 2: 0.92, 3: 0.94}


FUSED, CELL, HALF = ("fused", "float32"), ("cell", "float32"), ("fused", "float16")
SAME = {FUSED: REFERENCE, CELL: REFERENCE}
ANSWERS = {
    "nothing": (SAME, ["the precision? Not beyond chance. After 5 steps"]),
    "within the spread of seeds": ({**SAME, HALF: {1: 0.91, 2: 0.92, 3: 0.94}},
     ["mnist-rows on the CPU: no change beyond chance;",
     "fused in float32 reaches 92.00% ± 2.00 over 3 seeds",
     "the largest difference is +0.33 points (fused, float16)"]),
    "beyond it": ({**SAME, HALF: {1: 0.70, 2: 0.72, 3: 0.74}},
     ["the precision? Yes, in part. After 5 steps", "yes, for fused, float16;", "-20.00 points"]),
    "the largest difference": ({**SAME, HALF: {1: 0.90, 2: 0.92, 3: 0.94003},
     ("cell", "float16"): {1: 0.89, 2: 0.91, 3: 0.93}},
     ["the largest difference is -1.00 points (cell, float16)"]),
    "one sample where seeds agree": ({FUSED: {1: 1.0, 2: 1.0}, CELL: {1: 1.0, 2: 0.999}},
     [": no change beyond chance;"]),
    "one seed": ({FUSED: {1: 0.9}, CELL: {1: 0.5}}, ["with one seed it cannot be told from chance"]),
    "no reference": ({CELL: REFERENCE, ("elementary", "float32"): {1: 0.80, 2: 0.80, 3: 0.80}},
     ["unknown, as the fused implementation in float32 has no accuracy; the 2 others",
     "reach 80.00% to 92.00%"]),
}  # fmt: skip


class TestAccuracy:
    def test_difference_is_of_pairs_of_seeds_and_spread_the_root_of_the_mean_variance(self, results):
        made = results(cell("fused", "float32", REFERENCE), cell("cell", "float32", {1: 0.91, 2: 0.93}))
        (compared,) = comparisons(made)
        assert compared.difference("cell, float32") == pytest.approx(0.01)
        even = cell("cell", "float32", {1: 0.92, 2: 0.92, 3: 0.92})
        (compared,) = comparisons(results(cell("fused", "float32", REFERENCE), even))
        assert compared.seed_sd == pytest.approx(0.02 / 2**0.5)
        # t of 2 x 2 degrees of freedom, for one comparison
        assert compared.noise == pytest.approx(2.7764 * 0.02 / 2**0.5 * (2 / 3) ** 0.5, rel=1e-4)

    @pytest.mark.parametrize(("cells", "texts"), ANSWERS.values(), ids=ANSWERS)
    def test_answer_says_what_is_beyond_chance(self, results, cells, texts):
        told = sentences_of(results(*(cell(*names, scores) for names, scores in cells.items())))[-1]
        assert [text for text in texts if text not in told] == []

    def test_devices_are_compared_each_with_its_own_reference_and_the_untrained_named(self, results):
        devices = ("cpu", "cuda")
        made = results(*(cell(*one, REFERENCE, device=device) for one in SAME for device in devices))
        for device in ("CPU", "GPU"):
            assert f"mnist-rows on the {device}: no" in sentences_of(made)[-1]
        left_out = cell(*HALF, accuracy_left_out="3 trainings would take 99 s")
        made = results(*(cell(*names, scores) for names, scores in SAME.items()), left_out)
        assert "(not trained, as it would take too long: fused, float16)" in sentences_of(made)[-1]
        remarks = [text for table in device_tables([made]) for text in table.remarks]
        assert "No accuracy of mnist-rows on the CPU, fused, float16: 3 trainings would take 99 s." in remarks


class TestSpeed:
    def test_rate_is_the_batch_over_the_median_and_figures_have_a_panel_a_phase_and_precision(self, results):
        (one,) = results(cell("fused", "float32", seconds=[[0.5] * 7], batch=100)).cells
        assert (one.per_s("batch"), one.per_s("batch", "predict")) == (pytest.approx(200), None)
        speed, accuracy = figures(results(cell(*FUSED, REFERENCE), cell(*HALF, REFERENCE)))
        names = [text.get_text() for text in accuracy.figure.axes[0].get_yticklabels()]
        assert (len(speed.figure.axes), names) == (3 * 2, ["fused, float32", "fused, float16"])

    def test_sentences_say_how_much_faster_at_which_batches(self, results):
        cells = []
        for batch, slow_s in ((128, 0.2), (1024, 0.4)):
            for way, precision, seconds in ((*FUSED, 0.1), (*CELL, slow_s), ("fused", "float64", 0.4)):
                cells.append(cell(way, precision, batch=batch, seconds=[[seconds] * 7]))
        told = " ".join(sentences_of(results(*cells)))
        assert "training 2.0 to 4.0 times by a loop over LSTMCell" in told
        assert "training of the fused LSTM takes 4.0 times in float64 (seen in one launch)" in told
        cells = [cell("fused", "float32", batch=batch) for batch in (128, 1024)]
        made = results(*cells, cell("cell", "float32", batch=1024, seconds=[[0.2] * 7]))
        told = "fused LSTM's time: training 2.0 times at batch 1,024 by a loop over LSTMCell"
        assert told in " ".join(sentences_of(made))

    @pytest.mark.parametrize(
        ("scatter", "doubt"), [(0.001, "a tie within 3%"), (0.05, "undecided")], ids=["steady", "noisy"]
    )
    def test_what_launches_do_not_tell_apart_is_said(self, results, scatter, doubt):
        signs = {"fused": (-1, 0, 1, 0), "cell": (1, 0, -1, 0)}
        runs = {way: [[0.1 * (1 + scatter * sign)] * 7 for sign in own] for way, own in signs.items()}
        made = results(*(cell(way, "float32", seconds=seconds) for way, seconds in runs.items()))
        assert f"training 1.0 times ({doubt}) by a loop over LSTMCell" in " ".join(sentences_of(made))

    def test_without_a_gpu_its_columns_are_empty_and_that_is_said(self, results):
        tables = device_tables([results(cell("fused", "float32", REFERENCE), has_gpu=False)])
        milliseconds, speeds, accuracies = tables
        assert milliseconds.rows[0][3:9] == ["100", *[MISSING] * 5]
        row = dict(zip(speeds.headings, speeds.rows[0], strict=True))
        shown = row["GPU: training, samples/s"], row["CPU: training, samples/s"], len(accuracies.rows)
        assert shown == (MISSING, "1,280", 1)
        assert any("no GPU" in remark for remark in speeds.remarks)
