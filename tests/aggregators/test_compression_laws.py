"""Laws of every codec as an aggregator: over many steps, and on tensors of awkward shapes."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from scaling import conformance
from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.schedule import Scheduled
from scaling.bucket import BucketLayout
from scaling.process_group import run_in_process
from tests.aggregators.conftest import CODECS, CPU, made

NUM_STEPS = 50
WITHOUT_FEEDBACK = ("sign", "qsgd", "fp16", "bf16")
LAYOUTS = {
    "of a network": [("conv", (6, 3, 5, 5)), ("bias", (6,)), ("a", (40, 37)), ("b", (40, 37)), ("one", ())],
    "of one row": [("row", (1, 77))],
    "of one column": [("column", (77, 1))],
    "of one element": [("one", (1,))],
    "with empty tensors": [("empty", (0, 9)), ("some", (5, 7)), ("nothing", (0,))],
}  # fmt: skip


def gradients_of(rank, step, num_elements):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(num_elements, generator=generator)


@cache
def run(label, world_size, layout_name="of a network", num_steps=NUM_STEPS, scale=1.0):
    """[rank] -> the result of each step, and what is withheld after it."""
    layout, aggregator = BucketLayout.of(LAYOUTS[layout_name]), made(label)

    def work(group):
        state = aggregator.start(layout, group, torch.float32, CPU)
        seen = []
        for step in range(num_steps):
            gradient = scale * gradients_of(group.rank, step, layout.num_elements)
            result = aggregator.aggregate(state, gradient).clone()
            seen.append((result, state.total_residual()))
        state.check()
        return seen

    return run_in_process(world_size, work)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("label", CODECS)
def test_replicas_have_the_same_bits_for_fifty_steps(label):
    first, *others = run(label, 3)
    for other in others:
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, other, strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", [2, 7])
@pytest.mark.parametrize("layout_name", LAYOUTS)
@pytest.mark.parametrize("label", CODECS)
def test_contract_holds_on_awkward_tensors(label, layout_name, world_size):
    """Residuals, bytes and zeros among it; more ranks than columns, rows and elements too."""
    shapes = tuple(shape for _, shape in LAYOUTS[layout_name])
    values = ("zeros", "normal", "wide range", "normal", "zeros", "normal")
    case = conformance.Case(world_size, torch.float32, shapes, values)
    assert conformance.check(made(label), case) == (label not in WITHOUT_FEEDBACK)


@pytest.mark.parametrize("label", CODECS)
@pytest.mark.parametrize("layout_name", LAYOUTS)
class TestAwkwardTensors:
    @pytest.mark.sampled(4)
    def test_tiny_and_large_values_stay_finite(self, label, layout_name):
        for scale in (1e-30, 1e3):
            for seen in run(label, 3, layout_name, 3, scale):
                assert all(bool(result.isfinite().all()) for result, _ in seen)

    def test_alone_the_result_is_the_gradient_itself(self, label, layout_name):
        (seen,) = run(label, 1, layout_name, 1)
        assert torch.equal(seen[0][0], gradients_of(0, 0, len(seen[0][0])))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("label", CODECS)
def test_contract_holds_with_chunks_so_small_that_stripes_differ_in_length(label):
    aggregator = made(label)
    if hasattr(aggregator, "chunk_elements") and aggregator.name != "two_bit":
        aggregator = create(aggregator.name, {**aggregator.parameters(), "chunk_elements": 32})
    for world_size in (2, 7):
        shapes, values = ((3, 171), (513,), ()), ("integers", "normal", "wide range", "denormal")
        case = conformance.Case(world_size, torch.float32, shapes, values, resume_after=2)
        conformance.check(aggregator, case)


BY_NAME = [
    *(create(name) for name in BUILT_IN if name != "one_bit_adam"),
    create("one_bit_adam", {"warmup_steps": 1}), create("one_bit", {"threshold": "mean"}),
    create("power_sgd", {"approximation_size": 3, "warm_start": False}),
    create("qsgd", {"bits": 8, "norm": "max"}), create("top_k", {"momentum_correction": 0.9}),
    create("ef_sign", {"error_feedback": False}),
]  # fmt: skip
# What is carried by another library takes processes: tests/runtime.
BY_NAME = [aggregator for aggregator in BY_NAME if aggregator.library is None]
ON_ONE_RANK = list({type(aggregator): aggregator for aggregator in reversed(BY_NAME)}.values())
"""One of each class."""
SCHEDULED = [aggregator for aggregator in BY_NAME if isinstance(aggregator, Scheduled)]
AGGREGATORS = [aggregator for aggregator in BY_NAME if aggregator not in SCHEDULED]
AGGREGATORS += [replace(one, transport=way) for one in SCHEDULED for way in ("sends", "peer_memory")]
"""In a process, ranks can both send and reach each other's memory."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("aggregator", "world_size"),
    [*((aggregator, 1) for aggregator in ON_ONE_RANK), *product(AGGREGATORS, (3, 4))],
    ids=lambda value: value if isinstance(value, int) else value.label(),
)
def test_contract_holds_on_fixed_and_drawn_cases(aggregator, world_size):
    """A few cases of a fixed seed; `scaling verify --all --examples 500 --seed 7` draws more, and others."""
    found = conformance.check_drawn(aggregator, world_size, num_examples=3)
    keeps = aggregator.lossy and aggregator.name not in WITHOUT_FEEDBACK
    keeps &= getattr(aggregator, "error_feedback", True)
    assert found == keeps


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("aggregator", SCHEDULED, ids=lambda one: one.label())
def test_schedules_deliver_the_sum_where_the_step_is_taken(aggregator, world_size):
    for shapes in (((1,),), ((3, 171), (513,), ())):
        conformance.check_schedule(aggregator, world_size, conformance.layout_of(shapes))


@pytest.mark.parametrize(
    "name", ["none", "all_reduce", "ring", "tree", "host_serial", "host_parallel", "one_bit"]
)
def test_wire_bytes_are_stated_and_so_checked(name):
    layout = conformance.layout_of(((1000,),))
    stated = [create(name).wire_bytes(layout, 4, rank, 4) for rank in range(4)]
    assert all(isinstance(num_bytes, int) for num_bytes in stated)
