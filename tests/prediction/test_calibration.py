import math

import numpy as np
import pytest

from scaling.prediction.calibration import Calibration, Observation, calibrate
from scaling.prediction.compute import ComputeModel
from scaling.prediction.fitting import fitted, observations_of_transfers
from scaling.prediction.measured import MeasuredTransfer
from scaling.prediction.predict import Predictor, strategy_key
from scaling.prediction.terms import Machinery, Term, divide_term, terms_of
from tests.prediction.conftest import by_root, cell, machine, measured, strategy


def observation(kind, latency_s, flow_s, seconds, key=None):
    return Observation(key, [Term(kind, kind, latency_s, flow_s)], seconds, 0.01, 2)


def test_factors_that_made_the_times_are_found():
    found = calibrate(
        observation("sends", 1e-4, flow_s, 3e-4 + 1.2 * flow_s) for flow_s in (1e-5, 1e-3, 1e-2, 1e-1)
    )
    assert found.factor("sends", 0) == pytest.approx(3, rel=0.1)
    assert found.factor("sends", 1) == pytest.approx(1.2, rel=0.05)


def test_what_was_measured_is_more_certain_than_what_was_not():
    found = calibrate(observation("sends", 1e-4, flow_s, 2e-4 + flow_s) for flow_s in (1e-3, 1e-2, 1e-1))
    known, unknown = Term("sends", "a", 0.0, 0.1), Term("sends_host", "b", 0.0, 0.1)
    assert found.seconds(known).relative_sd < found.seconds(unknown).relative_sd / 2


def test_nothing_measured_leaves_the_machine_file_with_its_priors():
    estimate = Calibration().seconds(Term("peer_memory", "a", 1e-5, 1e-3))
    assert estimate.value == pytest.approx(1.01e-3)
    assert estimate.relative_sd > 0.1


def test_a_strategys_left_over_stays_with_it():
    ordinary = [
        observation("sends", 0, s, s, ("net", str(s), "peer access")) for s in (1e-3, 2e-3, 4e-3, 8e-3)
    ]
    slow = observation("sends", 0, 2e-3, 4e-3, ("net", "slow", "peer access"))
    found = calibrate([*ordinary, slow])
    term = found.seconds(Term("sends", "a", 0, 2e-3))
    own, known = found.with_left_over(("net", "slow", "peer access"), term, 4)
    assert known
    assert own.value == pytest.approx(4e-3, rel=0.1)
    other, known = found.with_left_over(("net", "new", "peer access"), term, 4)
    assert not known
    assert other.value == term.value
    assert other.relative_sd > own.relative_sd


def test_left_over_is_less_certain_further_away():
    found = calibrate([observation("sends", 0, 1e-3, 1e-3, ("a",))])
    term = found.seconds(Term("sends", "a", 0, 1e-3))
    near, far = (found.with_left_over(("a",), term, size)[0].relative_sd for size in (2, 1024))
    assert far > 2 * near


def test_a_librarys_left_over_goes_by_size():
    sizes = (2**20, 2**24, 2**28)
    machinery = Machinery(machine(2))
    plain = observations_of_transfers(
        [MeasuredTransfer("all_reduce", 2, size, False, 1.0, 0.01) for size in sizes], machinery
    )
    times = [one.terms[0].latency_s + one.terms[0].flow_s for one in plain]
    slow = [3 * times[0], times[1], times[2]]
    probed = [
        MeasuredTransfer("all_reduce", 2, size, False, seconds, 0.01)
        for size, seconds in zip(sizes, slow, strict=True)
    ]
    found = calibrate(observations_of_transfers(probed, machinery))
    for one, seconds in zip(plain, slow, strict=True):
        assert found.seconds(one.terms[0]).value == pytest.approx(seconds, rel=1e-6)


def truth_of(values, factors, compute):
    """What a cell would take on a machine whose factors are known: (iteration, exchange)."""
    own, n = strategy(values), values["world_size"]
    terms = [
        *terms_of(own, 0, Machinery(machine()), n),
        *divide_term(own.num_elements, own, Machinery(machine()), n),
    ]
    exchange_s = sum(
        factors.get(t.kind, (1, 1))[0] * t.latency_s + factors.get(t.kind, (1, 1))[1] * t.flow_s
        for t in terms
    )
    exchange_s = exchange_s if n > 1 else 0.0
    return compute[0] + compute[1] * values["local_batch"] + exchange_s, exchange_s


def test_intervals_cover_on_machines_whose_truth_is_known():
    """Machines drawn from the priors, measured with noise on one and two ranks, predicted for four."""
    draws, inside, predicted = np.random.default_rng(1), [], []
    for _ in range(40):
        factors = {
            kind: tuple(np.exp(draws.normal(0, 0.25, 2))) for kind in ("peer_memory", "native", "sends_host")
        }
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


def test_keys_tell_ways_apart_where_they_matter():
    assert strategy_key(strategy(cell(2))) != strategy_key(strategy(cell(2, peer_access=False)))


def test_measurements_of_more_ranks_than_the_machine_has_calibrate_nothing():
    seen = [
        measured(cell(1, "none"), 4e-3),
        measured(cell(4), 5e-3, 1e-3),
        measured(cell(4, "all_reduce"), 5e-3, 1e-3),
    ]
    probed = [MeasuredTransfer("all_reduce", 4, 2**24, False, 1e-3, 0.01)]
    known = [(one, strategy(dict(one.cell))) for one in seen]
    assert fitted(Machinery(machine(2)), known, probed).num_observations == 0
    assert fitted(Machinery(machine(4)), known, probed).num_observations == 3
