"""The shipped studies of the paper's networks: its batch sizes, and every system's strategy."""

from itertools import product

import pytest

from scaling.aggregators.registry import BUILT_IN, create
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study, shipped_studies
from scaling.study.resolve import resolve

BATCHES = (("fcn-r", 4096), ("alexnet-r", 1024), ("resnet-56", 128))
PRESETS = {name for name, target in BUILT_IN.items() if ".presets." in target}


def test_two_gpus_have_every_system_on_one_worker_too_and_mxnet_overlapped():
    study = resolve(load_study("paper-2gpu"), AvailableMachine(2, 32))
    assert set(study.repeats.values()) == {3}
    with_access = [cell for cell in study.cells.values() if cell.peer_access]
    assert {(cell.model, cell.global_batch) for cell in with_access} == set(BATCHES)
    eager = {(cell.model, cell.aggregator, cell.world_size) for cell in with_access if cell.step == "eager"}
    assert eager == set(product((model for model, _ in BATCHES), PRESETS | {"none", "all_reduce"}, (1, 2)))
    host_only = {cell.aggregator for cell in study.cells.values() if not cell.peer_access}
    by_host = {name for name in PRESETS if create(name).one_host or name.startswith("cntk")}
    assert host_only == (PRESETS | {"none", "all_reduce"}) - by_host
    overlapped = {cell.aggregator for cell in with_access if cell.step == "overlapped"}
    assert overlapped == {"none", "all_reduce", "mxnet_device", "mxnet_local"}


@pytest.mark.parametrize("machine", [AvailableMachine(0, 2), AvailableMachine(4, 64)], ids=str)
def test_every_system_is_measured_at_the_papers_batches_on_1_2_and_4(machine):
    assert "arXiv 1608.07249" in shipped_studies()["paper"].splitlines()[0]
    study = resolve(load_study("paper"), machine)
    cells = study.cells.values()
    for model, batch in BATCHES:
        of_model = [cell for cell in cells if cell.model == model]
        assert {cell.aggregator for cell in of_model} == PRESETS | {"none", "all_reduce"}
        assert {cell.global_batch for cell in of_model} == {batch}
        assert {cell.world_size for cell in of_model} == {1, 2, 4}
    assert {(cell.scaling, cell.kind) for cell in cells} == {("strong", "iteration")}
    assert set(study.repeats.values()) == {3}
