"""How often intervals of the critical batch hold the truth."""

import math

import numpy as np
import pytest

from scaling.analysis.steps_by_batch import fit_steps, steps_to_target
from tests.analysis.test_critical_batch import BATCHES, CRITICAL, LEAST, SAMPLES, made, samples_of, true_steps


@pytest.mark.quality
@pytest.mark.parametrize(("batches", "seeds", "misfit"), [
    (BATCHES, 3, 0.0), (BATCHES, 3, 0.1), ((64, 512, 4096), 3, 0.1), ((*BATCHES, 8192), 3, 0.1),
    (BATCHES, 1, 0.1),
])  # fmt: skip
def test_intervals_hold_the_truth(batches, seeds, misfit):
    """300 studies: seeds scatter by 5%, batches about the curve by `misfit`, epochs are evaluated once."""
    random, again, held = np.random.default_rng(7), np.random.default_rng(8), np.zeros(5)
    for _ in range(300):
        trained, middles = zip(*(drawn(random, batch, seeds, misfit) for batch in batches), strict=True)
        fit = fit_steps(trained)
        inside = [(fit.critical, CRITICAL), (fit.least, LEAST)]
        for batch in (256, 16384):
            one = true_steps(batch) * math.exp(random.normal(0, math.hypot(0.05, misfit)))
            inside.append((fit.steps(batch), one))
        inside.append((fit.steps(batches[0]), math.exp(middles[0] + again.normal(0, 0.05))))
        held += [found.low <= truth <= found.high for found, truth in inside]
    assert (held / 300 >= 0.92).all(), held / 300


def drawn(random, batch, seeds, misfit):
    """A batch's trainings, and the mean of their log steps; the accuracy's curve is concave, which the line
    between epochs is not."""
    middle, width = math.log(true_steps(batch)) + random.normal(0, misfit), SAMPLES / batch
    reached = []
    for steps in np.exp(middle + random.normal(0, 0.05, seeds)):
        ends = np.arange(1, 2 + int(2 * steps / width)) * width
        training = samples_of(1 - 0.1 ** ((ends / steps) ** 0.7), np.full(len(ends), width))
        reached.append(steps_to_target(training, {"target_accuracy": 0.9}))
    steps, variances = zip(*reached, strict=True)
    return made(batch, steps, float(np.mean(variances))), middle
