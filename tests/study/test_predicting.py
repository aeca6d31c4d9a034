"""What a cell's aggregation is taken to consist of."""

import pytest

from scaling.bucket import layouts_of_text, shapes_by_dtype_text
from scaling.collectives.plan import CodecWork, Exchange, Update
from scaling.errors import StudyError
from scaling.prediction.strategy import Machinery
from scaling.prediction.terms import terms_of, update_terms
from scaling.study.cell import AvailableMachine
from scaling.study.predicting import strategy_of
from tests.made import made_cells
from topologies.schema import load


def variables(**changes):
    """Of a cell."""
    return made_cells(AvailableMachine(num_gpus=2, num_cores=8), world_sizes=[2], **changes)[0].to_dict()


def bytes_moved(aggregator, device):
    """Read and written in all encodings and decodings."""
    strategy = strategy_of(variables(aggregators=[aggregator], device=device))
    stages = [stage for bucket in strategy.buckets for stage in bucket]
    return sum(stage.num_bytes * stage.bytes_moved for stage in stages if isinstance(stage, CodecWork))


@pytest.mark.parametrize("name", ["one_bit", "one_bit_flat", "ef_sign", "qsgd"])
def test_kernels_are_those_that_the_device_takes(name):
    by_torch = bytes_moved({"name": name, "kernels": "torch"}, "cuda")
    assert bytes_moved(name, "cpu") == by_torch
    assert bytes_moved(name, "cuda") < by_torch / 1.5


class TestDtypes:
    SHAPES = "64x32 32; bfloat16: 32x10 10; float64: scalar"

    def strategy(self, shapes, **changes):
        aggregator = changes.pop("aggregator", "ring")
        return strategy_of(variables(aggregators=[aggregator], device="cuda", **changes), shapes)

    def exchanged_bytes(self, strategy):
        stages = [stage for bucket in strategy.buckets for stage in bucket if isinstance(stage, Exchange)]
        return [stage.num_elements * stage.bytes_per_element for stage in stages]

    def test_each_has_buckets_of_its_own_with_its_own_bytes(self):
        strategy = self.strategy(self.SHAPES)
        assert self.exchanged_bytes(strategy) == [4 * 2080, 2 * 330, 8]
        assert strategy.bucket_elements == (2080, 330, 1)
        assert strategy.num_elements == (4 * 2080 + 2 * 330 + 8) // 4

    def test_buckets_of_an_overlapped_step_are_filled_by_their_bytes(self):
        changes = {"step": "overlapped", "bucket_mb": 4 * 2080 / 2**20}
        assert self.strategy("64x32 32 64x32 32", **changes).bucket_elements == (2080, 2080)
        assert self.strategy("bfloat16: 64x32 32 64x32 32", **changes).bucket_elements == (4160,)

    def test_codes_are_as_long_whatever_is_encoded(self):
        one, other = (self.strategy(f"{dtype}64x32", aggregator="one_bit") for dtype in ("", "float16: "))
        assert self.exchanged_bytes(one) == self.exchanged_bytes(other)

    def test_owners_of_each_bucket_update_their_share_of_all(self):
        whole = self.strategy("64x32 64x32", aggregator="mxnet_device").gpu_update_share
        parts = self.strategy("64x32; float64: 64x32", aggregator="mxnet_device").gpu_update_share
        assert whole == 0.5
        assert parts == pytest.approx(1.0)  # either bucket begins with rank 0, which owns one tensor of each

    def test_the_hosts_step_of_each_tensor_is_hidden_with_its_exchange(self):
        machinery = Machinery(load("hgx-h200"))
        eager, overlapped = (
            self.strategy("640x320 32x64", aggregator="mxnet_local", step=step)
            for step in ("eager", "overlapped")
        )
        steps = [[s for s in bucket if isinstance(s, Update)] for bucket in overlapped.buckets]
        assert [[s.num_elements for s in bucket] for bucket in steps] == [[32 * 64], [640 * 320]]
        assert not update_terms(overlapped, machinery, 2)
        (behind,) = update_terms(eager, machinery, 2)
        hidden = [t for at in range(2) for t in terms_of(overlapped, at, machinery, 2) if "update" in t.name]
        assert sum(t.flow_s for t in hidden) == pytest.approx(behind.flow_s)
        assert not any(t.by_gpu for t in hidden)
        assert overlapped.gpu_update_share == eager.gpu_update_share == 0  # no GPU takes the step

    @pytest.mark.parametrize("text", ["complex64: 3x3", "3x3; float32: 4", "float16: 3x", "3x3; ; 4"])
    def test_other_texts_are_damaged(self, text):
        with pytest.raises(StudyError, match="tensor_shapes of its run are damaged"):
            self.strategy(text)

    def test_shapes_are_read_as_they_were_written(self):
        layouts = layouts_of_text(self.SHAPES)
        assert shapes_by_dtype_text(layouts) == self.SHAPES
        assert list(layouts) == ["float32", "bfloat16", "float64"]
        assert shapes_by_dtype_text({"float32": layouts["float32"]}) == "64x32 32"
