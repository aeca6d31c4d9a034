"""What Horovod's aggregators say of themselves; what they do is tested in processes (tests/runtime)."""

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Exchange
from scaling.errors import LaunchError, StudyError
from scaling.process_group import run_in_process

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
        def work(group):
            create(name).start(LAYOUT, group, torch.float32, torch.device("cpu"))

        with pytest.raises(LaunchError, match=r"horovod cannot be used by these ranks: .*`make horovod`"):
            run_in_process(2, work)


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
