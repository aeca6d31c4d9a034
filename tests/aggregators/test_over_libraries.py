"""What Horovod's aggregators say of themselves, and what those over MPI copy between a GPU and its host.

What they do is tested in processes (tests/runtime). MPI's side and the GPU's stream stand in here.
"""

import pytest
import torch

from scaling.aggregators import over_mpi
from scaling.aggregators.over_mpi import Mpi, MpiOneBit, MpiState
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Exchange
from scaling.errors import LaunchError, StudyError
from scaling.process_group import MpiGroup, run_in_process
from tests.aggregators.conftest import CPU, of_states

NAMES = ["horovod", "horovod_optimizer"]
LAYOUT = BucketLayout.of([("a", (5, 3)), ("b", (7,))])


@pytest.mark.parametrize("name", NAMES)
class TestBoth:
    def test_settings_of_its_start_become_horovods_variables_and_what_is_not_set_is_left_to_it(self, name):
        settings = {"fusion_threshold_bytes": 0, "cycle_time_s": 0.0025, "timeline": True}
        assert create(name, settings).start_up() == {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_TIMELINE": "{launches}/horovod-{world_size}-{repeat}.json",
        }
        assert create(name).start_up() == create(name, {"compression": "fp16"}).start_up() == {}

    def test_it_is_lossy_with_16_bits_alone(self, name):
        assert not create(name).lossy
        assert create(name, {"compression": "fp16"}).lossy

    @pytest.mark.parametrize(
        "wrong",
        [{"compression": "bf16"}, {"fusion_threshold_bytes": -1}, {"cycle_time_s": 0}, {"timeline": "a"}],
    )
    def test_wrong_parameters_are_named(self, name, wrong):
        with pytest.raises(StudyError, match=next(iter(wrong))):
            create(name, wrong)

    def test_between_threads_it_says_what_it_needs(self, name):
        with pytest.raises(LaunchError, match=r"horovod cannot be used by these ranks: .*`make horovod`"):
            of_states(create(name), LAYOUT, 2, type)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("compression", "num_bytes"), [("none", 4 * 22), ("fp16", 2 * 22)])
def test_sixteen_bits_send_half_and_are_predicted_to(name, compression, num_bytes):
    aggregator = create(name, {"compression": compression})
    (exchange,) = (one for one in aggregator.stages(LAYOUT, 2) if isinstance(one, Exchange))
    assert exchange.num_elements * exchange.bytes_per_element == num_bytes
    assert aggregator.wire_bytes(LAYOUT, 2, 0, 4) == num_bytes


def test_tensors_are_rounded_down_one_by_one():
    assert create("horovod").wire_bytes(LAYOUT, 3, 0, 4) == 88 * 4 // 3
    assert create("horovod_optimizer").wire_bytes(LAYOUT, 3, 0, 4) == 60 * 4 // 3 + 28 * 4 // 3


MATRIX = BucketLayout.of([("weight", (40, 30)), ("bias", (30,))])


@pytest.fixture(autouse=True)
def copies_without_a_stream(monkeypatch):
    def down(pairs):
        for source, target in pairs:
            target.copy_(source)

    monkeypatch.setattr(over_mpi, "_down", down)


def gradient_of(group):
    return torch.randn(MATRIX.num_elements, generator=torch.Generator().manual_seed(group.rank))


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_reduce_meters_the_gradient_down_and_up(world_size):
    def work(group):
        state = MpiState(group, MATRIX, group, torch.empty(MATRIX.num_elements))
        mean = Mpi().aggregate(state, gradient_of(group))
        return mean, group.meter.bytes_sent

    ranks = run_in_process(world_size, work)
    stated = Mpi().wire_bytes(MATRIX, world_size, 0, 4)
    assert [sent for _, sent in ranks] == [stated + 2 * 4 * MATRIX.num_elements] * world_size
    assert all(torch.equal(mean, ranks[0][0]) for mean, _ in ranks)


@pytest.mark.parametrize("world_size", [2, 3])
def test_stripes_meter_what_is_sent_down_and_what_is_received_up(monkeypatch, world_size):
    monkeypatch.setattr(MpiGroup, "of", staticmethod(lambda group: group))

    def work(group):
        state = MpiOneBit(kernels="torch").start(MATRIX, group, torch.float32, CPU)
        longest = max(state.buffers.stripes.words)
        rooms = [[torch.empty(longest, dtype=torch.int32) for _ in range(world_size)] for _ in range(2)]
        state.sent, state.received = rooms
        group.meter.reset()
        mean = MpiOneBit().aggregate(state, gradient_of(group))
        return mean.clone(), group.meter.bytes_sent

    ranks = run_in_process(world_size, work)
    sent = [MpiOneBit().wire_bytes(MATRIX, world_size, rank, 4) for rank in range(world_size)]
    assert [metered for _, metered in ranks] == [3 * one for one in sent]
    assert all(torch.equal(mean, ranks[0][0]) for mean, _ in ranks)
