import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, special

from scaling.prediction.calibration import PRIOR_SD, Calibration, Observation
from scaling.prediction.compute import ComputeModel
from scaling.prediction.estimate import sd_that_reaches
from scaling.prediction.fitting import calibrate, fitted, observations_of_cells, observations_of_transfers
from scaling.prediction.measured import MeasuredTransfer
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Machinery, Term, strategy_key
from scaling.prediction.terms import divide_term, terms_of
from tests.prediction.conftest import by_root, cell, machine, measured, strategy


def observation(kind, latency_s, flow_s, seconds, key=None):
    return Observation(key, [Term(kind, kind, latency_s, flow_s)], seconds, 0.01, 2)


def single(ratio, sd, key=None, world_size=2):
    """A term of 10 ms that took `ratio` times as long."""
    return Observation(key, [Term("sends", "sends", 0.0, 1e-2)], ratio * 1e-2, sd, world_size)


def test_factors_that_made_the_times_are_found():
    found = calibrate(observation("sends", 1e-4, s, 3e-4 + 1.2 * s) for s in (1e-5, 1e-3, 1e-2, 1e-1))
    assert found.factor("sends", 0) == pytest.approx(3, rel=0.1)
    assert found.factor("sends", 1) == pytest.approx(1.2, rel=0.05)


def test_what_was_measured_is_more_certain_than_what_was_not():
    found = calibrate(observation("sends", 1e-4, flow_s, 2e-4 + flow_s) for flow_s in (1e-3, 1e-2, 1e-1))
    known, unknown = Term("sends", "a", 0.0, 0.1), Term("sends_host", "b", 0.0, 0.1)
    assert found.seconds(known).relative_sd < found.seconds(unknown).relative_sd / 2
    estimate = Calibration().seconds(Term("peer_memory", "a", 1e-5, 1e-3))
    assert (estimate.value, estimate.relative_sd > 0.1) == (pytest.approx(1.01e-3), True), (
        "the machine file's"
    )


def test_a_strategys_left_over_stays_with_it_and_is_less_certain_further_away():
    times = (1e-3, 2e-3, 4e-3, 8e-3)
    ordinary = [observation("sends", 0, s, s, ("net", str(s), "peer access")) for s in times]
    found = calibrate([*ordinary, observation("sends", 0, 2e-3, 4e-3, ("net", "slow", "peer access"))])
    term = found.seconds(Term("sends", "a", 0, 2e-3))
    own, known = found.with_left_over(("net", "slow", "peer access"), term, 4)
    assert known
    assert own.value == pytest.approx(4e-3, rel=0.1)
    other, known = found.with_left_over(("net", "new", "peer access"), term, 4)
    assert not known
    assert other.value == term.value
    assert other.relative_sd > own.relative_sd
    far, _ = found.with_left_over(("net", "slow", "peer access"), term, 1024)
    near, _ = found.with_left_over(("net", "slow", "peer access"), term, 2)
    assert far.relative_sd > 2 * near.relative_sd


def test_a_librarys_left_over_goes_by_size():
    sizes = (2**20, 2**24, 2**28)
    machinery = Machinery(machine(2))
    asked = [MeasuredTransfer("all_reduce", 2, size, False, 1.0, 0.01) for size in sizes]
    plain = observations_of_transfers(asked, machinery)
    times = [one.terms[0].latency_s + one.terms[0].flow_s for one in plain]
    slow = [3 * times[0], times[1], times[2]]
    probed = [replace(one, seconds=seconds) for one, seconds in zip(asked, slow, strict=True)]
    found = calibrate(observations_of_transfers(probed, machinery))
    for one, seconds in zip(plain, slow, strict=True):
        assert found.seconds(one.terms[0]).value == pytest.approx(seconds, rel=1e-6)


def truth_of(values, factors, compute):
    """What a cell would take on a machine whose factors are known: (iteration, exchange)."""
    own, n = strategy(values), values["world_size"]
    machinery = Machinery(machine())
    terms = [*terms_of(own, 0, machinery, n), *divide_term(own.num_elements, own, machinery, n)]
    pairs = [(factors.get(t.kind, (1, 1)), t) for t in terms]
    exchange_s = sum(f[0] * t.latency_s + f[1] * t.flow_s for f, t in pairs) if n > 1 else 0.0
    return compute[0] + compute[1] * values["local_batch"] + exchange_s, exchange_s


@pytest.mark.quality
def test_intervals_cover_on_machines_whose_truth_is_known():
    """Machines drawn from the priors, measured with noise on one and two ranks, predicted for four."""
    draws, inside, predicted = np.random.default_rng(1), [], []
    for _ in range(40):
        kinds = ("peer_memory", "native", "sends_host")
        factors = {kind: tuple(np.exp(draws.normal(0, 0.25, 2))) for kind in kinds}
        compute = (draws.uniform(1e-4, 5e-4), draws.uniform(2e-7, 2e-6))

        def noisy(seconds, draws=draws):
            return seconds * math.exp(draws.normal(0, 0.01))

        seen = []
        for n in (1, 2):
            for aggregator in ("none", "ring", "all_reduce"):
                for access in (True, False):
                    values = cell(n, aggregator, peer_access=access)
                    iteration_s, exchange_s = truth_of(values, factors, compute)
                    own = noisy(exchange_s) if exchange_s else None
                    seen.append(measured(values, noisy(iteration_s), own))
        model = ComputeModel(seen)
        machinery = Machinery(machine())
        known = fitted(machinery, [(one, strategy(dict(one.cell))) for one in seen], [])
        predictor = Predictor(machinery, model, known)
        for aggregator in ("none", "ring", "all_reduce"):
            for access in (True, False):
                values = cell(4, aggregator, peer_access=access)
                low, high = predictor.predict(strategy(values)).iteration.interval
                inside.append(low <= truth_of(values, factors, compute)[0] <= high)
                predicted.append(high / low)
    assert np.mean(inside) >= 0.90
    assert np.median(predicted) < 2.0  # and are no wider than they need be


def test_an_update_by_the_root_keeps_its_share_of_the_measured_update():
    seen = [measured(cell(1, "none", local_batch=b), 1e-6 * b) for b in (1024, 2048, 4096)]
    predictor = Predictor(Machinery(machine()), ComputeModel(seen))
    replica, root = predictor.predict(strategy(cell(2))), predictor.predict(by_root(cell(2)))
    assert root.iteration.value == pytest.approx(replica.iteration.value, rel=1e-3)


def test_measurements_of_more_ranks_than_the_machine_has_calibrate_nothing():
    seen = [measured(cell(4, name), 5e-3, 1e-3) for name in ("ring", "all_reduce")]
    seen.append(measured(cell(1, "none"), 4e-3))
    assert strategy_key(strategy(cell(2))) != strategy_key(strategy(cell(2, peer_access=False)))
    probed = [MeasuredTransfer("all_reduce", 4, 2**24, False, 1e-3, 0.01)]
    known = [(one, strategy(dict(one.cell))) for one in seen]
    assert fitted(Machinery(machine(2)), known, probed).num_observations == 0
    assert fitted(Machinery(machine(4)), known, probed).num_observations == 3


KEYS = ("net", "ring", "peer access")


def exact_transfers(kind="sends"):
    """Enough of them that the factors are 1, whatever strategies say."""
    return [observation(kind, 0.0, flow_s, flow_s) for flow_s in np.geomspace(1e-3, 1.0, 400)]


class TestRobustLoss:
    def factor(self, ratios):
        found = calibrate(observation("sends", 0.0, 1e-2, 1e-2 * ratio) for ratio in ratios)
        return found.factor("sends", 1)

    @pytest.mark.parametrize("ratios", [[1.3], [0.9, 1.0, 1.2], [1.1] * 5 + [8.0], [2.0, 2.1, 1.9, 0.01]])
    def test_factor_is_the_minimum_of_the_pseudo_huber_loss_and_the_prior(self, ratios):
        clock = 10e-6 / (1e-2 * np.array(ratios))
        sd = np.sqrt(0.01**2 + 0.08**2 + clock**2)  # the measurement's own, the model's, the clock's
        prior_sd = PRIOR_SD["sends"][1]

        def loss(log):
            errors = (log - np.log(ratios)) / sd
            return 2 * special.pseudo_huber(2.0, errors).sum() + (log / prior_sd) ** 2

        best = optimize.minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}).x
        assert math.log(self.factor(ratios)) == pytest.approx(best, abs=1e-4)

    def test_one_measurement_pulls_no_further_however_far_it_is_off(self):
        alone, far, further = (self.factor([1.2] * 8 + off) for off in ([], [12.0], [1200.0]))
        assert (far, further) == (pytest.approx(alone, rel=0.05), pytest.approx(far, rel=0.005))


@pytest.mark.parametrize("own_sd", [0.05, 0.5])
@pytest.mark.parametrize("kind", ["sends", "native", "host_work"])
def test_one_measurement_adds_its_precision_to_that_of_the_prior(kind, own_sd):
    found = calibrate([Observation(None, [Term(kind, kind, 0.0, 1.0)], 1.0, own_sd, 2)])
    precision = 1 / (own_sd**2 + 0.08**2) + 1 / PRIOR_SD[kind][1] ** 2
    assert found.seconds(Term(kind, "a", 0.0, 1.0)).relative_sd == pytest.approx(precision**-0.5, rel=1e-3)


def test_prediction_is_as_uncertain_as_the_fit_is_off():
    draws = np.random.default_rng(3).normal(0, 1, 200)

    def relative_sd(scatter):
        logs = scatter * draws
        found = calibrate(observation("sends", 0.0, 1e-2, 1e-2 * math.exp(log)) for log in logs)
        return found.seconds(Term("sends", "a", 0.0, 1e-2)).relative_sd

    stated = relative_sd(0.08)
    assert relative_sd(0.01) == pytest.approx(stated, rel=0.2)  # never below what was stated
    assert relative_sd(0.32) == pytest.approx(4 * stated, rel=0.3)


class TestShrinkage:
    """A strategy's left-over is a draw from all strategies', seen with the measurement's noise."""

    def left_over(self, found, key=KEYS, world_size=2):
        """Its logarithm, and its deviation."""
        term = found.seconds(Term("sends", "a", 0.0, 1e-2))
        own, known = found.with_left_over(key, term, world_size)
        assert known
        return math.log(own.value / term.value), own.changes[f"left-over of {' '.join(key)}"] / own.value

    @pytest.mark.parametrize("noise", [0.01, 0.15, 0.6])
    def test_single_strategys_left_over_is_the_mean_of_its_posterior(self, noise):
        log, sd = self.left_over(calibrate([*exact_transfers(), single(1.3, noise, KEYS)]))
        logs = np.linspace(-4, 4, 80_001)
        density = np.exp(-((logs / 0.15) ** 2) / 2 - ((logs - math.log(1.3)) / noise) ** 2 / 2)
        mean = np.average(logs, weights=density)
        assert log == pytest.approx(mean, abs=0.01)
        assert sd == pytest.approx(math.sqrt(np.average((logs - mean) ** 2, weights=density)), rel=0.02)

    @pytest.mark.parametrize(("scatter", "noise"), [(0.3, 0.3), (0.5, 0.1)])
    def test_left_overs_of_many_strategies_are_nearer_to_the_truth_than_measured_ones(self, scatter, noise):
        generator = np.random.default_rng(8)
        truth = generator.normal(0, scatter, 150)
        seen = truth + generator.normal(0, noise, 150)
        strategies = [single(math.exp(one), noise, ("net", str(n), "sends")) for n, one in enumerate(seen)]
        found = calibrate([*exact_transfers(), *strategies])
        told = np.array([self.left_over(found, ("net", str(n), "sends")) for n in range(150)])
        best = 1 / (1 + noise**2 / scatter**2)  # of the measured variance that is the strategies' own
        assert np.mean((told[:, 0] - truth) ** 2) == pytest.approx(best * noise**2, rel=0.2)
        assert np.std((told[:, 0] - truth) / told[:, 1]) == pytest.approx(1, abs=0.15)

    def test_what_makes_the_fit_too_long_makes_the_left_over_as_much_shorter(self):
        found = calibrate([single(1.0, 0.3), single(1.3, 0.001, KEYS)])
        term = found.seconds(Term("sends", "a", 0.0, 1e-2))
        known, _ = found.with_left_over(KEYS, term, 2)
        assert term.relative_sd > 0.05
        assert known.relative_sd < 0.01

    def test_left_over_is_that_of_the_largest_measured_world_size(self):
        strategies = [single(ratio, 0.001, KEYS, size) for size, ratio in ((2, 1.0), (4, 1.3), (3, 0.8))]
        log, _ = self.left_over(calibrate([*exact_transfers(), *strategies]), world_size=4)
        assert log == pytest.approx(math.log(1.3), abs=0.02)


def of_ranks(ranks, flow_s=1.0, shared_s=0.0):
    return Term("native_host", "a", 0.0, flow_s, num_ranks=ranks, shared_s=shared_s)


def fitted_to(*times, shared_s=0.0):
    """To (ranks, seconds), each seen ten times."""
    terms = [(of_ranks(ranks, shared_s=shared_s), seconds) for ranks, seconds in times]
    return calibrate([Observation(None, [one], s, 0.005, one.num_ranks) for one, s in terms] * 10)


class TestRanksThatShareAPath:
    """A kind's flow changes by its trend for each doubling of the ranks."""

    def test_from_two_sizes_it_goes_on(self):
        eight = fitted_to((2, 1.0), (4, 1.15)).seconds(of_ranks(8))
        assert eight.value == pytest.approx(1.15**2, rel=0.03)

    def test_from_one_size_it_is_an_interval_that_widens(self):
        two, four, eight = (fitted_to((2, 1.0)).seconds(of_ranks(ranks)) for ranks in (2, 4, 8))
        assert eight.value == pytest.approx(two.value)
        assert four.relative_sd == pytest.approx(math.hypot(0.15, two.relative_sd), rel=0.02)
        assert eight.relative_sd == pytest.approx(math.hypot(0.30, two.relative_sd), rel=0.02)


class TestPathsThatRanksShare:
    """Beyond what was measured the interval reaches to no more bytes a second than were seen."""

    def found(self, measured_s=1.0):
        return fitted_to((2, measured_s), shared_s=1.0)

    def test_interval_holds_saturation_at_what_was_seen_and_the_value_does_not_move(self):
        alone, shared = (self.found().seconds(of_ranks(8, shared_s=s)) for s in (0.0, 4.0))
        assert shared.value == alone.value
        assert shared.interval[1] >= 4.0 > alone.interval[1]

    def test_the_trend_is_a_part_of_what_saturation_adds(self):
        four = self.found().seconds(of_ranks(4, shared_s=1.5))
        unshared = self.found().seconds(of_ranks(4))
        further = (sd_that_reaches(1.5) ** 2 - 0.15**2) ** 0.5
        assert four.relative_sd == pytest.approx(math.hypot(unshared.relative_sd, further), rel=0.01)

    def test_more_bytes_than_the_file_says_were_seen(self):
        # The file's shared path would have taken a second, and half of that was measured.
        assert self.found(0.5).shared_scale["native_host"] == pytest.approx(0.5)
        assert self.found(2.0).shared_scale["native_host"] == 1.0

    def test_what_more_ranks_rest_on_is_said(self):
        found = self.found()
        assert found.seconds(of_ranks(2, shared_s=4.0)) == found.seconds(of_ranks(2)), "as were measured"
        assert found.rests_on(of_ranks(2)) is None
        assert "measured on 2 ranks alone; 15% a doubling" in found.rests_on(of_ranks(4))
        assert "4.0 times as long, if shared paths" in found.rests_on(of_ranks(8, shared_s=4.0))
        unmeasured = Term("sends", "a", 0.0, 1.0, num_ranks=4)
        assert "not measured, as the machine file has it" in found.rests_on(unmeasured)
        assert Calibration().rests_on(unmeasured) is None
        twice = fitted_to((2, 1.0), (4, 1.15))
        assert "measured on 2, 4 ranks; +14% for each doubling" in twice.rests_on(of_ranks(8))


def test_an_exchange_is_what_it_adds_to_a_step_whose_computation_is_known_with_the_noise_of_the_step():
    def observed(relative_sd, *compute_sd):
        seen = measured(cell(2, "ring", local_batch=4096), 8e-3, exchange_s=2e-3, relative_sd=relative_sd)
        models = [ComputeModel([measured(cell(1, "none"), 4e-3, relative_sd=sd)]) for sd in compute_sd]
        known = [(seen, strategy(dict(seen.cell)))]
        (found,) = observations_of_cells(known, Machinery(machine(2)), *models)
        return found, [model.step(seen.cell, 4096).step_s.sd for model in models]

    for compute_sd, seconds in (((), 2e-3), ((0.01,), 4e-3), ((0.3,), 2e-3)):
        assert observed(0.01, *compute_sd)[0].seconds == pytest.approx(seconds)
    by_spans, _ = observed(0.05)
    assert by_spans.relative_sd == pytest.approx(0.05 * 8 / 2)
    added, (computed_s,) = observed(0.05, 0.01)
    assert added.relative_sd == pytest.approx(math.hypot(0.05 * 8e-3, computed_s) / 4e-3)


def test_time_of_almost_nothing_is_uncertain_and_no_overflow():
    assert 1e5 < single(1e-298, 0.01).sd < 1e7
