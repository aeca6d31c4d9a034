"""What `scaling plan` estimates is near what launches took where they were measured."""

from dataclasses import fields
from pathlib import Path

import pytest

from scaling.device_studies.base import create
from scaling.device_studies.declaration import BUILT_IN
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.kinds import KINDS
from scaling.study.kinds.device import CELL_TIMES, DeviceCell
from scaling.study.launches import estimate_seconds, remaining_launches
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from tests.made import loaded

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


def test_cores_share_what_is_work_and_the_limit_bounds_it():
    def of(num_cores, limit_s):
        return seconds(cell(experiment="cpu-threads", limit_s=limit_s), num_cores)

    assert of(2, 20.0) > of(16, 20.0)
    assert of(1, 20.0) - of(1, 5.0) == pytest.approx(7.0)  # 12 core-seconds, of which 5 fit


def test_experiments_of_others_have_an_estimate():
    for device in ("cpu", "cuda"):
        assert seconds(cell(experiment="mine:Own", device=device)) > 0.25


@pytest.fixture(scope="module")
def plan_quality():
    return loaded(SCRIPT)


@pytest.mark.parametrize(
    "name", ["budget-4xh200", "converge-alexnet-2xh200", "gpt-1xh200", "gpt-2xh200", "converge-gpt-cpu"]
)
def test_estimate_of_a_study_is_within_a_factor_of_one_and_a_half(plan_quality, name):
    runs, measured_s, estimated_s = plan_quality.seconds_of(plan_quality.REFERENCE / name)
    assert runs
    assert 1 / FACTOR < estimated_s / measured_s < FACTOR
