"""How large a job a study needs, told on a machine without GPUs."""

from functools import partial

import pytest

from scaling.errors import StudyError
from scaling.study.resolve import JobShape, job_shape
from tests.made import made_study

study = partial(made_study, name="x", world_sizes=[1, 4, 2])


@pytest.mark.parametrize(
    ("nodes", "gpus", "shape"),
    [
        (None, None, JobShape([1, 2, 4], 1, 4, 4)),
        (2, None, JobShape([1, 2, 4], 2, 2, 2)),
        (None, 2, JobShape([1, 2, 4], 2, 2, 2)),
        (None, 8, JobShape([1, 2, 4], 1, 8, 8)),
        (3, 2, JobShape([1, 2, 4], 3, 2, 2)),
        (1, 0, JobShape([1, 2, 4], 1, 4, 0)),
    ],
)
def test_what_is_not_asked_for_follows_from_the_largest_world_size(nodes, gpus, shape):
    assert job_shape(study(), nodes, gpus) == shape


def test_study_on_processors_asks_for_no_gpus():
    assert job_shape(study(device="cpu"), 2) == JobShape([1, 2, 4], 2, 2, 0)


def test_sizes_that_the_study_drops_where_gpus_are_missing_are_not_asked_for():
    assert job_shape(study(missing_devices="drop"), 1, 2).world_sizes == [1, 2]
    assert job_shape(study(missing_devices="error"), 1, 2).world_sizes == [1, 2, 4]
    assert job_shape(study(missing_devices="drop", device="cpu"), 1, 2).world_sizes == [1, 2, 4]


def test_study_of_which_no_size_fits_is_refused():
    with pytest.raises(StudyError, match="no world size of study 'x' fits on 1 x 2 GPUs"):
        job_shape(study(missing_devices="drop", world_sizes=[4]), 1, 2)


def test_study_that_says_cuda_is_refused_without_gpus():
    with pytest.raises(StudyError, match="has device: cuda; give --gpus-per-node"):
        job_shape(study(device="cuda"), None, 0)
