"""The overlapped step in two real processes: every bucket of DDP has the dtype of its parameters."""

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import StudyError
from scaling.measure.clock import MonotonicClock
from scaling.measure.phases import PhaseRecorder
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from tests.ranks import as_rank
from tests.training import small
from tests.training.mixed_models import MIXED, NUM_STEPS, RARE, SETTINGS, Network, apart, plainly_trained
from tests.training.small import all_of, batch

ULPS = 16
"""Of a parameter after some steps; see test_dtypes.py."""
EXACT = ("all_reduce", "ring", "tree")
LOSSY = ("one_bit", "two_bit")  # what is lost of a tensor is its own, whatever bucket it is in
OF_LOSSY = {"bfloat16 head": 1e-2, "float64 scalar": 1e-5, "three dtypes": 1e-2}
RESUMED = ("all_reduce", "one_bit", "one_bit_flat", "power_sgd")
MODELS = {**MIXED, **RARE}

pytestmark = pytest.mark.processes


def overlapped(module, name, group):
    return small.overlapped(module, create(name), SETTINGS, group, batch(group.rank, 0), bucket_mb=5e-4)


def take(step, rank, start=0, stop=NUM_STEPS):
    return [step(*batch(rank, number)).item() for number in range(start, stop)]


def without_template(module):
    """Weight decay moves a parameter without a gradient in an eager step alone."""
    if hasattr(module, "template"):
        del module.template
    return module


def trainings(group):
    """How far each is from a plain loop; with a lossy aggregator its losses, and the eager step's."""
    seen = {}
    for model, make in MODELS.items():
        expected = without_template(plainly_trained(make(), group.world_size))
        for name in EXACT:
            step = overlapped(make(), name, group)
            group.meter.reset()
            take(step, group.rank, 0, 1)
            sent, num_bytes = group.meter.bytes_sent, sum(one.nbytes for one in step.replica.trainable)
            take(step, group.rank, 1)
            off = apart(without_template(step.replica.module), expected)
            seen[f"{model} {name}"] = {"apart": off, "unsent": num_bytes - sent, "notes": step.notes}
    for model in OF_LOSSY:
        for name in LOSSY:
            eager = EagerStep(FlatReplica(MODELS[model]()), create(name), SETTINGS, group)
            steps = overlapped(MODELS[model](), name, group), eager
            seen[f"{model} {name}"] = [take(one, group.rank) for one in steps]
    return seen


def split(group):
    """DDP's own path gets a hook half-way."""
    expected = plainly_trained(MODELS["three dtypes"](), group.world_size)
    step = overlapped(MODELS["three dtypes"](), "all_reduce", group)
    take(step, group.rank, 0, 2)
    step.prepare_profiled(PhaseRecorder(MonotonicClock()))
    take(step, group.rank, 2)
    return {"apart": apart(step.replica.module, expected), "notes": step.notes}


def resumed(group):
    """Whether a saved and loaded step goes on with the same bits."""
    seen = {}
    for name in RESUMED:
        step, other = (overlapped(MODELS["three dtypes"](), name, group) for _ in range(2))
        take(step, group.rank, 0, 3)
        saved = step.state_dict()
        losses = take(step, group.rank, 3, 6)
        other.load_state_dict(saved)
        same = losses == take(other, group.rank, 3, 6)
        seen[name] = [same, apart(step.replica.module, other.replica.module)]
    return seen


def refused(group):
    module = Network()
    module.odd = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    try:
        overlapped(module, "all_reduce", group)
    except StudyError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def seen(on_ranks):
    """seen(scenario, key): what both ranks saw."""
    ranks = on_ranks(__file__, 2)
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_a_plain_loops_and_bytes_go_by_each_dtype(seen, model, name):
    """Two ranks: each sends what it has once."""
    for rank in seen("trainings", f"{model} {name}"):
        assert rank["apart"] < ULPS
        assert rank["unsent"] == 0


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("model", OF_LOSSY)
def test_lossy_ones_train_as_the_eager_step(seen, model, name):
    for overlapped, eager in seen("trainings", f"{model} {name}"):
        assert overlapped == pytest.approx(eager, rel=OF_LOSSY[model])


def test_notes_name_the_dtypes_and_parameters_without_gradient(seen):
    for notes in (rank["notes"] for rank in seen("trainings", "three dtypes ring")):
        assert notes[0].startswith("parameters of 3 dtypes, exchanged in buckets of their own: float64 (1 ")
        assert notes[1].startswith("3 buckets of ")
    for notes in (rank["notes"] for rank in seen("trainings", "ShapeOnly ring")):
        assert notes[1] == "DDP searches every step for parameters that the loss does not depend on: template"


def test_ddps_own_path_goes_on_with_a_hook(seen):
    assert all(apart < ULPS for apart in seen("split", "apart"))
    assert all("3 buckets of " in notes[1] for notes in seen("split", "notes"))


@pytest.mark.parametrize("name", RESUMED)
def test_saved_step_goes_on_with_the_same_bits(seen, name):
    assert seen("resumed", name) == [[True, 0.0]] * 2


def test_parameters_that_cannot_be_trained_are_refused_by_name(seen):
    said = "parameter 'odd' is complex64, which cannot be trained; allowed are float32"
    assert all(said in error for error in seen("refused", slice(None)))


if __name__ == "__main__":
    as_rank(all_of(trainings, split, resumed, refused))
