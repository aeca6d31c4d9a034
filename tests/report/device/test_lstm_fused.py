"""What the report says of implementations and precisions: rates, pairs of seeds, and the verdict."""

import pytest

from scaling.report.device import device_tables, figures
from scaling.report.device.accuracy import comparisons
from scaling.report.device.tables import per_s
from tests.report.device.conftest import sentences_of

SECONDS = [[0.1] * 7]


@pytest.fixture
def lstm(of):
    """A folder of `lstm-fused`; `add(way, precision, {seed: accuracy})`."""

    def make(has_gpu: bool = True):
        settings = {"width": 8, "accuracy_width": 8, "accuracy_batch": 128, "steps": 5, "seeds": [1, 2, 3]}
        folder = of("lstm-fused", has_gpu=has_gpu, **settings)

        def add(way, precision, scores=None, *, batch=128, seconds=SECONDS, device="cpu", extra=(), **facts):
            rows = list(extra)
            if scores is not None:
                rows.append({"fact": "accuracy_by_seed", "x": list(scores), "y": list(scores.values())})
            facts = {"test_samples": 1000, "logit_difference": 1e-7, **facts}
            point = {"task": "mnist-rows", "implementation": way, "precision": precision}
            folder.add(seconds, device=device, facts=facts, extra=rows, **point, width=8, batch=batch)

        return folder, add

    return make


REFERENCE = {1: 0.90, 2: 0.92, 3: 0.94}


def answer(folder):
    return sentences_of(folder.results())[-1]


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
    def test_difference_is_of_pairs_of_seeds(self, lstm):
        folder, add = lstm()
        add("fused", "float32", REFERENCE)
        add("cell", "float32", {1: 0.91, 2: 0.93})
        (compared,) = comparisons(folder.results())
        assert compared.difference("cell, float32") == pytest.approx(0.01)

    def test_spread_is_the_root_of_the_mean_variance(self, lstm):
        folder, add = lstm()
        add("fused", "float32", REFERENCE)
        add("cell", "float32", {1: 0.92, 2: 0.92, 3: 0.92})
        (compared,) = comparisons(folder.results())
        assert compared.seed_sd == pytest.approx(0.02 / 2**0.5)
        # t of 2 x 2 degrees of freedom, for one comparison
        assert compared.noise == pytest.approx(2.7764 * 0.02 / 2**0.5 * (2 / 3) ** 0.5, rel=1e-4)

    @pytest.mark.parametrize(("cells", "texts"), ANSWERS.values(), ids=ANSWERS)
    def test_answer_says_what_is_beyond_chance(self, lstm, cells, texts):
        folder, add = lstm()
        for (way, precision), scores in cells.items():
            add(way, precision, scores)
        told = answer(folder)
        for text in texts:
            assert text in told

    def test_what_was_not_trained_is_named_with_its_reason(self, lstm):
        folder, add = lstm()
        add("fused", "float32", REFERENCE)
        add("cell", "float32", REFERENCE)
        add("fused", "float16", None, accuracy_left_out="3 trainings would take 99 s")
        assert "(not trained, as it would take too long: fused, float16)" in answer(folder)
        remarks = [text for table in device_tables([folder.results()]) for text in table.remarks]
        assert "No accuracy of mnist-rows on the CPU, fused, float16: 3 trainings would take 99 s." in remarks

    def test_devices_are_compared_each_with_its_own_reference(self, lstm):
        folder, add = lstm()
        for device in ("cpu", "cuda"):
            add("fused", "float32", REFERENCE, device=device)
            add("cell", "float32", REFERENCE, device=device)
        told = answer(folder)
        assert "mnist-rows on the CPU: no" in told
        assert "mnist-rows on the GPU: no" in told


class TestSpeed:
    def test_rate_is_the_batch_over_the_median(self, lstm):
        folder, add = lstm()
        add("fused", "float32", seconds=[[0.5] * 7], batch=100)
        (cell,) = folder.results().cells
        assert (per_s(cell, "batch"), per_s(cell, "batch", "predict")) == (pytest.approx(200), None)

    def test_sentences_say_how_much_faster_at_which_batches(self, lstm):
        folder, add = lstm()
        for batch, slow in ((128, 0.2), (1024, 0.4)):
            add("fused", "float32", batch=batch)
            add("cell", "float32", batch=batch, seconds=[[slow] * 7])
            add("fused", "float64", batch=batch, seconds=[[0.4] * 7])
        told = " ".join(sentences_of(folder.results()))
        assert "training 2.0 to 4.0 times by a loop over LSTMCell" in told
        assert "training of the fused LSTM takes 4.0 times in float64 (seen in one launch)" in told

    def test_batches_are_named_where_not_all_were_measured(self, lstm):
        folder, add = lstm()
        add("fused", "float32", batch=128)
        add("fused", "float32", batch=1024)
        add("cell", "float32", batch=1024, seconds=[[0.2] * 7])
        told = " ".join(sentences_of(folder.results()))
        assert "fused LSTM's time: training 2.0 times at batch 1,024 by a loop over LSTMCell" in told

    @pytest.mark.parametrize(
        ("scatter", "doubt"), [(0.001, "a tie within 3%"), (0.05, "undecided")], ids=["steady", "noisy"]
    )
    def test_what_launches_do_not_tell_apart_is_said(self, lstm, scatter, doubt):
        folder, add = lstm()
        for way, signs in (("fused", (-1, 0, 1, 0)), ("cell", (1, 0, -1, 0))):
            add(way, "float32", seconds=[[0.1 * (1 + scatter * sign)] * 7 for sign in signs])
        told = " ".join(sentences_of(folder.results()))
        assert f"training 1.0 times ({doubt}) by a loop over LSTMCell" in told

    def test_without_a_gpu_its_columns_are_empty_and_that_is_said(self, lstm):
        folder, add = lstm(has_gpu=False)
        add("fused", "float32", REFERENCE)
        milliseconds, speeds, accuracies = device_tables([folder.results()])
        assert milliseconds.rows[0][3:9] == ["100", "–", "–", "–", "–", "–"]  # noqa: RUF001
        row = dict(zip(speeds.headings, speeds.rows[0], strict=True))
        assert (row["GPU: training, samples/s"], row["CPU: training, samples/s"]) == ("–", "1,280")  # noqa: RUF001
        assert any("no GPU" in remark for remark in speeds.remarks)
        assert len(accuracies.rows) == 1

    def test_figures_have_a_panel_for_each_phase_and_precision(self, lstm):
        folder, add = lstm()
        add("fused", "float32", REFERENCE)
        add("fused", "float16", REFERENCE)
        speed, accuracy = figures(folder.results())
        assert len(speed.figure.axes) == 3 * 2
        assert [text.get_text() for text in accuracy.figure.axes[0].get_yticklabels()] == [
            "fused, float32",
            "fused, float16",
        ]
