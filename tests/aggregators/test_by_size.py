"""A bucket takes the exchange that was measured to be the fastest for its size, the same on every rank."""

import pytest
import torch
import yaml

from scaling import conformance
from scaling.aggregators.by_size import EXCHANGES, BySize, read_curves
from scaling.aggregators.registry import create
from scaling.errors import StudyError
from scaling.process_group import run_in_process
from scaling.registry import trust

SECONDS = {
    "all_reduce": [[1000, 4e-5], [100_000, 6e-5], [1_000_000, 5e-4]],
    "ring": [[1000, 9e-5], [100_000, 9e-5], [1_000_000, 3e-4]],
    "stripes": [[1000, 1e-5], [100_000, 8e-5]],
}


def written(folder, world_size=2, seconds=SECONDS, **changes):
    file = folder / "curves.yaml"
    values = {"device": "cpu", "world_size": world_size, "seconds": seconds, **changes}
    file.write_text(yaml.safe_dump(values))
    return str(file)


SLOWER = {**SECONDS, "stripes": [[1000, 5e-5], [100_000, 8e-5]]}
APART = {"stripes": [[10, 1e-5], [20, 1e-5]], "ring": [[100, 1e-5], [200, 1e-5]]}


@pytest.mark.parametrize(("seconds", "num_bytes", "fastest"), [
    (SECONDS, 0, "stripes"),  # below all that was measured: as the smallest
    (SECONDS, 1000, "stripes"),
    (SECONDS, 10_000, "stripes"),  # 28 us between its points; of all_reduce 49
    (SECONDS, 99_000, "all_reduce"), (SECONDS, 100_000, "all_reduce"),
    (SECONDS, 900_000, "ring"),  # stripes was not measured there
    (SECONDS, 10**9, "ring"),  # above all: as the largest
    (SLOWER, 1000, "all_reduce"),
    (APART, 15, "stripes"), (APART, 50, "ring"),  # between two ranges the next size above decides
])  # fmt: skip
def test_the_choice_is_the_measured_minimum_at_that_size(tmp_path, seconds, num_bytes, fastest):
    assert BySize(curves=written(tmp_path, seconds=seconds)).choice(num_bytes, 2) == fastest


@pytest.mark.parametrize(
    ("num_elements", "name"), [(10, "stripes"), (25_000, "all_reduce"), (230_000, "ring")]
)
def test_bytes_plan_and_result_are_those_of_the_chosen_one_on_every_rank(tmp_path, num_elements, name):
    aggregator, layout = BySize(curves=written(tmp_path)), conformance.layout_of(((num_elements,),))

    def work(group):
        state = aggregator.start(layout, group, torch.float32, torch.device("cpu"))
        gradient = torch.full((num_elements,), float(group.rank))
        result = aggregator.aggregate(state, gradient)
        return state.notes[0], bool((result == 0.5).all()), group.meter.bytes_sent

    stated = [aggregator.wire_bytes(layout, 2, rank, 4) for rank in range(2)]
    assert run_in_process(2, work) == [(f"exchange by size: {name}", True, one) for one in stated]
    assert aggregator.stages(layout, 2) == EXCHANGES[name].stages(layout, 2)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_it_keeps_the_contract(tmp_path, world_size):
    aggregator = BySize(curves=written(tmp_path, max(world_size, 2)))
    conformance.check_drawn(aggregator, world_size, num_examples=6)


def test_a_study_names_it_and_keeps_the_digest_of_the_curves(tmp_path):
    name, curves = "scaling.aggregators.by_size:BySize", written(tmp_path)
    trust([name])  # as a study file of the user's does
    made = create(name, {"curves": curves})
    assert made.parameters() == {"curves": curves, "sha256": read_curves(curves)[1]}
    written(tmp_path, seconds={"ring": [[1, 1.0]]})
    with pytest.raises(StudyError, match="has changed since the study was read"):
        create(name, made.parameters())


def test_ranks_with_other_curves_all_refuse(tmp_path):
    (tmp_path / "other").mkdir()
    ring = written(tmp_path / "other", seconds={"ring": SECONDS["ring"]})
    both = [BySize(curves=written(tmp_path)), BySize(curves=ring)]

    def work(group):
        layout = conformance.layout_of(((10,),))
        with pytest.raises(StudyError, match="is not the same on all ranks"):
            both[group.rank].start(layout, group, torch.float32, torch.device("cpu"))
        return True

    assert run_in_process(2, work) == [True, True]


@pytest.mark.parametrize(("changes", "message"), [
    ({"seconds": {}}, "seconds has no curve; measure them with benchmarks/exchange_curves.py"),
    ({"seconds": {"tree": [[1, 1.0]]}},
     "'tree'; allowed are all_reduce, ring, stripes, one_shot, two_shot"),
    ({"seconds": {"ring": []}}, "ring is a list of"),
    ({"seconds": {"ring": [[2, 1.0], [1, 1.0]]}}, "with ascending bytes"),
    ({"seconds": {"ring": [[1, 0.0]]}}, "above 0"),
    ({"seconds": {"ring": [[1, True]]}}, "above 0"),
    ({"device": "tpu"}, "device is cuda or cpu"), ({"world_size": 1}, "a number from 2 on"),
    ({"more": 1}, "has no curves"),
])  # fmt: skip
def test_what_is_no_curve_is_refused(tmp_path, changes, message):
    with pytest.raises(StudyError, match=message):
        BySize(curves=written(tmp_path, **changes))


def test_without_curves_of_this_machine_it_says_how_to_measure_them(tmp_path):
    for make, message in (
        (BySize, "needs curves: FILE, the measured ones; measure them with"),
        (lambda: BySize(curves=str(tmp_path / "none.yaml")), "cannot be read.*measure them with"),
        (lambda: BySize(curves=written(tmp_path)).choice(10, 4), "with 2 ranks, asked for 4; measure them"),
    ):
        with pytest.raises(StudyError, match=message):
            make()
    of_gpus = BySize(curves=written(tmp_path, device="cuda"))
    layout = conformance.layout_of(((10,),))
    with pytest.raises(StudyError, match="measured on cuda, the ranks compute on cpu"):
        run_in_process(2, lambda group: of_gpus.start(layout, group, torch.float32, torch.device("cpu")))
