"""The overlapped step in two real processes: every bucket of DDP has the dtype of its parameters."""

import pytest

from tests.training.mixed_models import MIXED, RARE

ULPS = 16
"""Of a parameter after some steps; see test_dtypes.py."""
EXACT = ("all_reduce", "ring", "tree")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def seen(on_ranks):
    """seen(scenario, key): what both ranks saw."""
    ranks = on_ranks("dtypes_worker.py", 2)
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("model", [*MIXED, *RARE])
class TestExact:
    def test_parameters_are_a_plain_loops(self, seen, model, name):
        for rank in seen("trainings", f"{model} {name}"):
            assert rank["apart"] < ULPS

    def test_bytes_go_by_each_dtype(self, seen, model, name):
        """Two ranks: each sends what it has once."""
        for rank in seen("trainings", f"{model} {name}"):
            assert rank["sent"] == rank["num_bytes"]


@pytest.mark.parametrize("name", ["one_bit", "two_bit"])
@pytest.mark.parametrize("model", ["bfloat16 head", "float64 scalar", "three dtypes"])
def test_lossy_ones_train_as_the_eager_step(seen, model, name):
    for rank in seen("trainings", f"{model} {name}"):
        overlapped, eager = rank["losses"]
        assert overlapped == pytest.approx(
            eager, rel=1e-2 if "bfloat16" in model or "three" in model else 1e-5
        )


def test_notes_name_the_dtypes_and_parameters_without_gradient(seen):
    for notes in (rank["notes"] for rank in seen("trainings", "three dtypes ring")):
        assert notes[0].startswith("parameters of 3 dtypes, exchanged in buckets of their own: float64 (1 ")
        assert notes[1].startswith("3 buckets of ")
    for notes in (rank["notes"] for rank in seen("trainings", "ShapeOnly ring")):
        assert notes[1] == "DDP searches every step for parameters that the loss does not depend on: template"


def test_ddps_own_path_goes_on_with_a_hook(seen):
    assert all(apart < ULPS for apart in seen("split", "apart"))
    assert all("3 buckets of " in notes[1] for notes in seen("split", "notes"))


@pytest.mark.parametrize("name", ["all_reduce", "one_bit", "one_bit_flat", "power_sgd"])
def test_saved_step_goes_on_with_the_same_bits(seen, name):
    assert seen("resumed", name) == [[True, 0.0]] * 2


def test_parameters_that_cannot_be_trained_are_refused_by_name(seen):
    for error in seen("refused", "error"):
        assert "parameter 'odd' is complex64, which cannot be trained; allowed are float32" in error
