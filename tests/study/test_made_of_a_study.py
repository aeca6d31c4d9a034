"""Studies made of a study: those of `scaling tune`, and one without the cells that are not worth it."""

from functools import partial

import pytest
import yaml

from scaling.axes import BYTE_MB
from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.pruning import CellChoice, study_of
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study
from scaling.study.tuning import cells_to_tune, deciding_study, measured_study, probe_study, text_of
from tests.made import WORKLOAD, made_study

MACHINE = AvailableMachine(0, 4)
BASE = {
    "workloads": [{**WORKLOAD, "global_batch": [8, 16]}],
    "aggregators": ["none", "all_reduce", "ring", "one_bit"],
    "step": ["eager", "overlapped"],
}


def made(**changes):
    study = made_study(**{**BASE, **changes})
    return study, resolve(study, MACHINE)


def cells_of(study):
    return resolve(study, MACHINE).trained


def test_each_overlapped_setting_of_several_workers_is_tuned_once_whatever_its_buckets():
    study, resolved = made(bucket_mb=[1, 25])
    cells = cells_to_tune(study, resolved)
    found = {(cell.aggregator, cell.global_batch) for cell in cells}
    assert found == {(name, batch) for name in ("all_reduce", "ring", "one_bit") for batch in (8, 16)}
    assert len(cells) == 6
    assert {(cell.world_size, cell.step) for cell in cells} == {(2, "overlapped")}


@pytest.mark.parametrize("changes", [{"step": "eager"}, {"world_sizes": [1]}, {"aggregators": ["none"]}])
def test_a_study_without_any_is_refused(changes):
    with pytest.raises(StudyError, match="no cell whose gradients DDP exchanges in buckets"):
        cells_to_tune(*made(**changes))


def test_the_probe_has_each_gradient_alone_and_ddps_own_buckets():
    study, resolved = made(repeats=5)
    cells = cells_to_tune(study, resolved)[:1]
    probed = resolve(probe_study(study, resolved, cells), MACHINE)
    found = [(cell.bucket_mb, cell.bucket_sizes_mb) for cell in probed.trained]
    assert found == [(BYTE_MB, None), (None, (1.0, 25.0))]
    assert set(probed.repeats.values()) == {1}
    assert {(cell.aggregator, cell.global_batch) for cell in probed.trained} == {("all_reduce", 8)}


def test_the_candidates_are_measured_with_the_default_and_without_exchange_in_the_same_launches():
    study, resolved = made(momentum=0.5, precision=["float32", "bf16"])
    cells = cells_to_tune(study, resolved)[:2]
    deciding = measured_study(study, resolved, cells, [[(0.5, 2.0), (4.0,)], []])
    first, second = (
        resolve(deciding.model_copy(update={"parts": (part,)}), MACHINE) for part in deciding.parts
    )
    arms = [(cell.aggregator, cell.bucket_sizes_mb) for cell in first.trained]
    assert arms == [("all_reduce", sizes) for sizes in ((1.0, 25.0), (0.5, 2.0), (4.0,))] + [("none", None)]
    assert [cell.bucket_sizes_mb for cell in second.trained] == [(1.0, 25.0), None]
    assert set(first.repeats.values()) == {2}
    assert {cell.precision for cell in first.trained} == {cells[0].precision}
    assert {cell.momentum for cell in first.trained} == {0.5}


@pytest.mark.parametrize(("repeats", "decided_by"), [(1, 4), (9, 9)])
def test_the_default_and_the_fastest_alone_have_the_launches_that_decide(repeats, decided_by):
    study, resolved = made(repeats=repeats)
    cells = cells_to_tune(study, resolved)[:2]
    screening = measured_study(study, resolved, cells, [[(0.5, 2.0), (4.0,)], []])
    deciding = resolve(deciding_study(screening, study, resolved, cells, [(4.0,), None]), MACHINE)
    repeats = deciding.repeats
    launches = {(cell.aggregator, cell.bucket_sizes_mb): repeats[cell.id] for cell in deciding.trained}
    screened = [("all_reduce", (0.5, 2.0)), ("none", None), ("ring", (1.0, 25.0))]
    decided = [("all_reduce", (1.0, 25.0)), ("all_reduce", (4.0,))]
    assert launches == {**dict.fromkeys(screened, 2), **dict.fromkeys(decided, decided_by)}
    assert {cell.id for cell in deciding.trained} == {cell.id for cell in cells_of(screening)}


def test_they_are_files_that_can_be_run(tmp_path):
    study, resolved = made()
    deciding = measured_study(study, resolved, cells_to_tune(study, resolved)[:1], [[(0.125, 3.0)]])
    file = tmp_path / "buckets.yaml"
    file.write_text(text_of(deciding), encoding="utf-8")
    assert [cell.id for cell in cells_of(load_study(str(file)))] == [cell.id for cell in cells_of(deciding)]


HERE = AvailableMachine(num_gpus=4, num_cores=8)
RESNET = {"model": "resnet-56", "dataset": "synthetic", "global_batch": 8}
prunable = partial(
    made_study, device="cuda", workloads=[RESNET], aggregators=["all_reduce"], noise_pair=False
)


def pruned_to(whole, resolved, keep=lambda cell: True):
    verdicts = [CellChoice(cell, keep(cell), "", 0.0) for cell in resolved.trained]
    return resolve(parse_study(yaml.safe_load(study_of(whole, verdicts, resolved)), "pruned.yaml"), HERE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"workloads": [RESNET]}, {"workloads": [{**RESNET, "model": "alexnet-r"}]}),
        ({"workloads": [RESNET]}, {"workloads": [{**RESNET, "global_batch": 16}]}),
        ({"tf32": False}, {"tf32": True}),
        ({"tf32": True}, {"precision": "bf16", "accumulate": 2}),
        ({"wire": "float32"}, {"wire": "bf16"}),
        ({"momentum": 0.5}, {"optimizer": "adamw", "beta2": 0.95, "clip_norm": 1}),
        ({"seed": 0}, {"seed": 1}),
        ({"peer_access": True}, {"peer_access": False}),
        ({"batch_norm": "replica"}, {"batch_norm": "sync"}),
        ({"memory_format": "contiguous"}, {"memory_format": "channels_last"}),
        ({"augmentation": "none"}, {"augmentation": "standard"}),
        ({"step": "overlapped", "bucket_mb": 1}, {"step": "overlapped", "bucket_mb": 25}),
    ],
    ids=" ".join,
)
def test_parts_that_differ_in_one_key_keep_their_cells_and_their_iterations(one, other):
    parts = [{**one, "iterations": 50}, {**other, "iterations": 200}]
    whole = prunable(parts=parts)
    resolved = resolve(whole, HERE)
    pruned = pruned_to(whole, resolved, lambda cell: cell.world_size == 2)
    left = {cell.id: cell.iterations for cell in pruned.trained}
    assert left == {cell.id: cell.iterations for cell in resolved.trained if cell.world_size == 2}
    assert sorted(left.values()) == [50, 200]


@pytest.mark.parametrize("key", ["learning_rate", "momentum", "weight_decay"])
def test_workloads_that_differ_in_how_the_optimizer_is_set_stay_two(key):
    whole = prunable(workloads=[{**RESNET, key: 0.1}, {**RESNET, key: 0.2}])
    resolved = resolve(whole, HERE)
    assert len(resolved.cells) == 4
    assert set(pruned_to(whole, resolved).cells) == set(resolved.cells)
    whole = prunable(parts=[{"repeats": 5}, {"repeats": 1, "world_sizes": [2]}])
    resolved = resolve(whole, HERE)
    assert set(resolved.repeats.values()) == {5}
    assert pruned_to(whole, resolved).repeats == resolved.repeats, (
        "a cell of two parts keeps the larger number"
    )
