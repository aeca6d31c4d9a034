"""The fidelity sheet: what it says is what the aggregator does."""

import json

import pytest
import torch

from scaling.aggregators.base import unmarked
from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.conformance import fidelity
from scaling.conformance.fidelity import LARGE, Sheet, has_sheet, make_sheet, recorded_gradients, sheet_of
from scaling.errors import StudyError
from scaling.store import ResultsFolder


@pytest.fixture
def small(monkeypatch):
    """The rates' gradient is a small one: their values are not looked at."""
    monkeypatch.setattr(fidelity, "LARGE", BucketLayout.of([("m", (64, 64)), ("v", (100,))]))


def sheet_with(**changed):
    values = {
        "first_error_ratio": 0.5, "first_cosine": 0.9, "sum_error_ratio": 0.1, "replicas_agree": True,
        "replicas_off_by": 0.0, "formula_bytes": 1000, "metered_bytes": 1000, "exact_bytes": 31_000,
        "encode_s": 0.002, "decode_s": 0.001, "gradient_bytes": 20_000, "measured_on": "a machine",
        "host_us_per_bucket": 3000.0,
    }  # fmt: skip
    return Sheet(**{**values, **changed})


def test_every_lossy_aggregator_that_runs_here_has_one():
    with_sheet = {name for name in BUILT_IN if has_sheet(create(name))}
    lossy = {name for name in BUILT_IN if create(name).lossy and create(name).library is None}
    # Exact in their first steps; of the first a step instead of a mean.
    assert with_sheet == lossy - {"one_bit_adam", "power_sgd_hook"}
    assert sheet_of("ring") is None
    assert sheet_of("mpi_one_bit") is None  # takes processes
    with pytest.raises(StudyError, match="unknown aggregator"):
        sheet_of("one_bitt")


def test_gradients_are_of_a_training_and_the_larger_one_is_mostly_matrices():
    assert 4 * LARGE.num_elements == 14_857_120
    layout, gradients = recorded_gradients()
    assert gradients.shape == (50, 4, layout.num_elements)
    assert bool(gradients.isfinite().all())
    assert not torch.equal(gradients[0, 0], gradients[0, 1])  # other samples
    means = gradients.mean(1)
    # At the start all samples push the same way, and the steps change the way.
    near, far = (torch.cosine_similarity(means[0], means[step], dim=0) for step in (1, -1))
    assert near > far + 0.1
    recorded_gradients.cache_clear()
    assert torch.equal(recorded_gradients()[1], gradients)


@pytest.mark.usefixtures("small")
class TestWhatItSays:
    def test_sixteen_bits_err_by_their_rounding_and_own_momentum_is_compared_with_momentum(self):
        assert 1e-6 < make_sheet(create("fp16")).first_error_ratio < 2**-10
        assert 1e-4 < make_sheet(create("bf16")).first_error_ratio < 2**-7
        assert make_sheet(create("one_bit_momentum")).sum_error_ratio < 0.5

    @pytest.mark.parametrize("name", ["one_bit_flat", "ef_sign", "top_k", "power_sgd"])
    def test_error_feedback_makes_the_sum_good(self, name):
        with_feedback = make_sheet(create(name))
        without = make_sheet(create(name, {"error_feedback": False}))
        assert with_feedback.first_error_ratio == pytest.approx(without.first_error_ratio)
        assert with_feedback.sum_error_ratio < 0.7 * without.sum_error_ratio

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("name", sorted(name for name in BUILT_IN if has_sheet(create(name))))
    def test_replicas_agree_and_bytes_are_the_formulas(self, name):
        sheet = make_sheet(create(name))
        assert sheet.replicas_agree
        assert (sheet.replicas_off_by, sheet.formula_bytes) == (0, sheet.metered_bytes)
        assert sheet.exact_bytes == 2 * 3 * 4 * (64 * 64 + 100) // 4
        assert sheet.encode_s > 0
        assert sheet.decode_s > 0

    def test_replicas_that_drift_apart_are_found(self):
        class Drifting(type(create("fp16"))):
            def aggregate(self, state, gradient, phase=unmarked):
                return super().aggregate(state, gradient) + 1e-3 * state.group.rank

        sheet = make_sheet(Drifting())
        assert not sheet.replicas_agree
        assert sheet.replicas_off_by == pytest.approx(50 * 0.3 * 3e-3, rel=0.01)
        assert "off by up to" in sheet.lines()[1]


def test_below_the_break_even_the_step_is_faster_and_above_slower_and_what_sends_more_never_pays():
    sheet, more = sheet_with(), sheet_with(metered_bytes=40_000)
    assert sheet.break_even_bytes_per_s == pytest.approx((31_000 - 1000) / 0.003)
    for factor, pays in ((0.9, True), (1.1, False)):
        speed = factor * sheet.break_even_bytes_per_s
        compressed_s = sheet.metered_bytes / speed + sheet.encode_s + sheet.decode_s
        assert (compressed_s < sheet.exact_bytes / speed) == pays
    assert (more.break_even_bytes_per_s, "never" in more.lines()[-1]) == (0, True)
    text = "\n".join(sheet.lines())
    for part in ("on a machine", "(2(n-1)/n S - W) / (E + D)", "0.01 GB/s", "31 times", "cosine 0.900"):
        assert part in text


@pytest.mark.usefixtures("small")
class TestCommand:
    def test_lines_follow_the_finding_and_go_into_a_results_folder(self, call, tmp_path):
        folder = ResultsFolder(tmp_path)
        folder.write_study({"name": "by-hand"})
        code, out, _ = call("verify", "ef_sign", "--world-sizes", "2", "--save-to", tmp_path)
        first, *sheet = out.splitlines()
        assert (code, first.startswith("ef_sign  aggregator  ok  contract at 2 ranks")) == (0, True)
        assert max(len(line) for line in sheet if str(tmp_path) not in line) <= 80
        starts = [line.split()[0] for line in sheet if not line.startswith("   ")]
        assert starts == ["error", "replicas", "bytes", "rates", "break-even"]
        code, _, err = call("verify", "all_reduce", "--world-sizes", "2", "--save-to", tmp_path)
        assert (code, "others have no sheet" in err) == (2, True)
        (sheet,) = folder.sheets().values()
        assert sheet["replicas_agree"] is True

    def test_json_has_it_and_exact_ones_have_none(self, call):
        names = ("ef_sign", "all_reduce")
        found = [json.loads(call("verify", name, "--world-sizes", "2", "--json")[1]) for name in names]
        sheet, none = (value["sheet"] for (value,) in found)
        assert none is None
        assert sheet["break_even_bytes_per_s"] > 0
        assert (sheet["replicas_agree"], sheet["metered_bytes"]) == (True, sheet["formula_bytes"])
