"""What becomes of a point: samples, or the reason why there are none."""

from dataclasses import dataclass
from unittest import mock

import pytest
import torch

from scaling.device_studies.base import Budget, Experiment, LeftOutError
from scaling.study.kinds.device import DeviceCell
from scaling.study.rank.device import measure_point

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Faulty(Experiment):
    """Yields one sample, then does what its point says."""

    name = "faulty"

    def points(self):
        return [{"fault": "none"}]

    def measure(self, point, device, budget):
        yield {"phase": "step", "seconds": 0.5}
        fault = point["fault"]
        if fault == "left out":
            raise LeftOutError("it would take too long")
        if fault == "memory":
            raise MemoryError("no room for 9 GB")
        if fault == "cuda memory":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of"
            )
        if fault == "allocator":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
        if fault == "hidden memory":
            try:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            except torch.OutOfMemoryError:
                raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
        if fault == "bug":
            raise RuntimeError("a bug")


def rows_of(fault):
    cell = DeviceCell("faulty", {}, {"fault": fault}, "cpu", 1, 0.1, 1.0, 1)
    rows = []
    with mock.patch("scaling.study.rank.device.create", return_value=Faulty()):
        measure_point(
            *(cell.experiment, cell.parameters, cell.point),
            *(Budget(cell.seconds, limit_s=cell.limit_s), CPU, rows.extend),
        )
    return rows


def left_out(rows):
    return [row["value"] for row in rows if row.get("fact") == "left_out"]


def test_samples_are_handed_out_with_the_load_before():
    rows = rows_of("none")
    assert {"phase": "step", "seconds": 0.5} in rows
    assert [row["fact"] for row in rows if "fact" in row] == ["load_average"]


def test_point_that_is_left_out_is_a_result_with_its_reason():
    assert left_out(rows_of("left out")) == ["it would take too long"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("memory", "out of memory: no room for 9 GB"),
        ("cuda memory", "out of memory: CUDA out of memory. Tried to allocate 20.00 GiB"),
        (
            "allocator",
            "out of memory: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes",
        ),
        ("hidden memory", "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_point_that_does_not_fit_is_a_result(fault, reason):
    assert left_out(rows_of(fault)) == [reason]


def test_any_other_error_fails_the_cell():
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        rows_of("bug")
