"""Whether what codecs lose matters to a training: a perceptron on the digits, 2 ranks that are threads."""

from functools import cache

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.measure.clock import MonotonicClock
from scaling.process_group import run_in_process
from scaling.training.convergence import TrainingPlan, train
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

pytestmark = pytest.mark.quality

WORLD_SIZE, GLOBAL_BATCH, EPOCHS = 2, 100, 6
RATE = 0.5
RATES = {"sign": 0.005 * RATE, "one_bit_momentum": 0.1 * RATE}  # steps of one size; a momentum of 0.9
SEEDS = range(4)
"""One training is chaotic: last bits of a product, which differ between processors, move its loss by 0.03."""
WITHIN = 0.08
"""Of the exact mean's training loss, which is 0.27 and was 2.3 at the start; means over the seeds."""


@cache
def trained(name, *parameters):
    """Mean loss of the last epoch's steps, and test accuracy; means over the seeds."""
    ended = torch.tensor([trained_once(seed, name, parameters) for seed in SEEDS], dtype=torch.float64)
    return ended.mean(dim=0).tolist()


def trained_once(seed, name, parameters):
    dataset, model = create_dataset("digits"), create_model("mlp", {"hidden": [64]})
    shape = resolve_shape(model, dataset)
    splits = dataset.load(shape, 0, 0)

    def work(group):
        torch.manual_seed(seed)
        settings = SgdSettings(RATES.get(name, RATE))
        aggregator = create(name, dict(parameters))
        replica = FlatReplica(build_module(model, shape), model.loss)
        step = EagerStep(replica, aggregator, settings, group)
        plan = TrainingPlan(GLOBAL_BATCH, EPOCHS, 1)
        rows = list(train(step, splits.train, splits.test, plan, group, MonotonicClock(), lambda s: s))
        return rows[-1]["train_loss"], rows[-1]["test_accuracy"], replica.parameters.clone()

    ranks = run_in_process(WORLD_SIZE, work)
    assert all(torch.equal(parameters, ranks[0][2]) for _, _, parameters in ranks)
    return ranks[0][:2]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("one_bit", ()),
        ("one_bit_flat", ()),
        ("one_bit_momentum", ()),
        ("two_bit", (("threshold", 0.01),)),
        ("ef_sign", ()),
        ("top_k", ()),
        ("power_sgd", ()),
        ("qsgd", ()),
        ("qsgd", (("bits", 8),)),
        ("fp16", ()),
        ("bf16", ()),
    ],
)
def test_compressed_training_learns_as_the_exact_one(name, parameters):
    loss, accuracy = trained(name, *parameters)
    exact_loss, exact_accuracy = trained("all_reduce")
    assert loss < exact_loss + WITHIN
    assert accuracy > exact_accuracy - 0.03


@pytest.mark.parametrize("name", ["one_bit_flat", "ef_sign", "top_k", "power_sgd"])
def test_without_error_feedback_the_loss_is_visibly_worse(name):
    with_feedback, _ = trained(name)
    without, _ = trained(name, ("error_feedback", False))
    assert without > 1.8 * with_feedback


def test_majority_of_signs_learns_with_a_small_learning_rate():
    loss, accuracy = trained("sign")
    assert loss < 1.0
    assert accuracy > 0.85
