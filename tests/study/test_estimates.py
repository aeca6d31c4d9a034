"""What a plan estimates is near what launches took; what a cell's aggregation is taken to consist of."""

from dataclasses import fields
from functools import cache, partial
from pathlib import Path

import pytest

from scaling.bucket import layouts_of_text, shapes_by_dtype_text
from scaling.collectives.plan import CodecWork, Exchange, Update
from scaling.device_studies.base import create
from scaling.device_studies.declaration import BUILT_IN
from scaling.errors import StudyError
from scaling.prediction.strategy import Machinery
from scaling.prediction.terms import terms_of, update_terms
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.kinds import KINDS
from scaling.study.kinds.device import CELL_TIMES, DeviceCell
from scaling.study.launches import estimate_seconds, remaining_launches
from scaling.study.overrides import load_study
from scaling.study.predicting import strategy_of
from scaling.study.resolve import resolve
from tests.made import loaded, made_cells
from topologies.schema import load

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plan_quality.py"
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
FACTOR = 1.5
FEWEST_CELLS = 10
DEVICE = KINDS["device"]


def cell(**changes):
    values = {"experiment": "small-networks", "parameters": {}, "point": {}, "device": "cpu", "threads": 2}
    return DeviceCell(**{**values, "seconds": 0.25, "limit_s": 4.0, "launch_threads": 2, **changes})


def seconds(one, num_cores=2):
    return DEVICE.seconds(one, num_cores, None)


def measured():
    """(name, cells, cores, seconds) of every launch of the reference studies that had enough cells."""
    for path in sorted(REFERENCE.glob("device-*")):
        folder = ResultsFolder(path)
        known = {record.cell_id: record.cell for record in folder.runs()}
        for number, launch in enumerate(folder.launch_times()):
            records = [known[one["cell_id"]] for one in launch["cells"]]
            names = [field.name for field in fields(DeviceCell)]
            cells = [DeviceCell(**{name: record[name] for name in names}) for record in records]
            if len(cells) >= FEWEST_CELLS:
                # On a CPU a launch's threads are the cores; on a GPU they do not matter.
                yield f"{path.name} {number}", cells, cells[0].launch_threads, launch["total_s"]


def test_estimate_is_near_what_reference_launches_took():
    launches = list(measured())
    if not launches:
        pytest.skip("results/reference is not here")
    ratios = {
        name: (DEVICE.start_up_s("cpu") + sum(seconds(one, cores) for one in cells)) / total_s
        for name, cells, cores, total_s in launches
    }
    assert {name: ratio for name, ratio in ratios.items() if not 1 / FACTOR < ratio < FACTOR} == {}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_experiment_is_known_on_the_devices_that_it_asks(name):
    only = {point.get("only_device") for point in create(name).points()}
    devices = {"cpu", "cuda"} if None in only else only
    unknown = {(name, device) for device in devices if (name, device) not in CELL_TIMES}
    assert unknown <= {("cpu-threads", "cuda")}


@pytest.mark.parametrize(
    ("name", "took_s"), [("small-networks", 150), ("cpu-threads", 180), ("batch-sizes", 420)]
)
def test_shipped_studies_take_on_two_cores_about_what_they_took(name, took_s, tmp_path):
    study = resolve(load_study(name, []), AvailableMachine(0, 2))
    launches = remaining_launches(ResultsFolder(tmp_path), study)
    estimated_s = sum(estimate_seconds(launch, {}, 2) for launch in launches)
    assert 1 / FACTOR < estimated_s / took_s < FACTOR


def test_longer_measurements_and_higher_limits_take_longer():
    first = seconds(cell())
    assert seconds(cell(seconds=1.25)) == pytest.approx(first + 1.1)
    assert seconds(cell(limit_s=8.0)) > first
    assert seconds(cell(point={"width": 8})) == first
    for device in ("cpu", "cuda"):
        assert seconds(cell(experiment="mine:Own", device=device)) > 0.25, (
            "those of others have an estimate too"
        )


def test_cores_share_what_is_work_and_the_limit_bounds_it():
    def of(num_cores, limit_s):
        return seconds(cell(experiment="cpu-threads", limit_s=limit_s), num_cores)

    assert of(2, 20.0) > of(16, 20.0)
    assert of(1, 20.0) - of(1, 5.0) == pytest.approx(7.0)  # 12 core-seconds, of which 5 fit


plan_quality = cache(partial(loaded, SCRIPT))


@pytest.mark.parametrize(
    "name", ["budget-4xh200", "converge-alexnet-2xh200", "gpt-1xh200", "gpt-2xh200", "converge-gpt-cpu"]
)
def test_estimate_of_a_study_is_within_a_factor_of_one_and_a_half(name):
    runs, measured_s, estimated_s = plan_quality().seconds_of(REFERENCE / name)
    assert runs
    assert 1 / FACTOR < estimated_s / measured_s < FACTOR


def variables(**changes):
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
