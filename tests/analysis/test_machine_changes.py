"""What is recorded of a machine and differs between two campaigns."""

import pytest

from scaling.analysis.environments import machine_changes
from tests.made_studies import StudyFolder, iteration


def campaign(path, *, width=16, count=18, cap_w=700.0, clock_hz=1980e6, queued_s=0.01, torch="2.11"):
    made = StudyFolder(path)
    subset = [{"name": "X", "pcie_generation": 5, "pcie_current_width": width}]
    made.folder.write_environment({"versions": {"torch": torch}, "gpus": [], "gpu_subset": subset})
    links = [{"type": "pcie", "between": ["cpu0", "gpu0"]}]
    links += [{"type": "nvlink", "between": ["gpu0", "gpu1"], "count": count}] * (count > 0)
    made.folder.write_topology({"links": links})
    gpu = {"power_limit_w": cap_w, "sm_clock_after_hz": clock_hz}
    host = {"window_s": 1.0, "queued_s": queued_s}
    made.add([[[iteration(0, 0.1)]] * 2], summary={"gpu": [gpu] * 2, "host": [host] * 2}, world_size=2)
    return made.folder


@pytest.mark.parametrize(("changed", "line"), [
    ({"width": 8}, "PCIe width of GPU 0: 16 against 8"),
    ({"count": 9}, "link gpu0-gpu1: 18 x nvlink against 9 x nvlink"),
    ({"count": 0}, "link gpu0-gpu1: 18 x nvlink against none"),
    ({"cap_w": 500.0}, "power cap: 700 W against 500 W"),
    ({"clock_hz": 1500e6}, "GPU clock under load: 1980 against 1500 MHz"),
    ({"queued_s": 0.41}, "workers wait for a core (other programs): 1% against 41%"),
    ({"torch": "2.12"}, "versions.torch: 2.11 against 2.12"),
])  # fmt: skip
def test_each_kind_is_named_alone(tmp_path, changed, line):
    assert machine_changes(campaign(tmp_path / "a"), campaign(tmp_path / "b", **changed)) == [line]


def test_what_varies_from_run_to_run_is_no_change(tmp_path):
    before, after = campaign(tmp_path / "a"), campaign(tmp_path / "b", clock_hz=1965e6, queued_s=0.04)
    assert machine_changes(before, after) == []


def test_what_was_not_recorded_is_no_change(tmp_path):
    bare = StudyFolder(tmp_path / "a")
    bare.folder.write_environment({"versions": {"torch": "2.11"}, "gpus": []})
    assert machine_changes(bare.folder, campaign(tmp_path / "b")) == []
