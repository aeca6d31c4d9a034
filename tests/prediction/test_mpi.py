"""MPI's exchanges as terms: the library's choice, its place in the calibration, and what is said of it."""

from dataclasses import replace

import pytest

from scaling.collectives.mpi_library import MpiLibrary
from scaling.prediction.calibration import Observation
from scaling.prediction.fitting import calibrate, machinery_for, observations_of_transfers
from scaling.prediction.measured import MeasuredTransfer
from scaling.prediction.predict import Predictor
from scaling.prediction.sources import Sources
from scaling.prediction.strategy import Machinery, strategy_key
from scaling.prediction.terms import terms_of, transport_of
from scaling.study.predicting import strategy_of
from tests.prediction.conftest import cell, machine, measured
from topologies.schema import load

OPEN_MPI, MPICH = MpiLibrary("Open MPI", (5, 0, 11)), MpiLibrary("MPICH", (5, 0, 2))


def mpi_cell(world_size, aggregator="mpi", **changes):
    model = {"model": "fcn-r", "model_parameters": {}, "dataset": "synthetic"}
    shape = {"dataset_parameters": {"input_shape": None, "num_classes": None}}
    return cell(world_size, aggregator, **model, **shape, **changes)


def terms(world_size, aggregator="mpi", mpi=OPEN_MPI, topology=None, **changes):
    own = strategy_of(mpi_cell(world_size, aggregator, **changes))
    found = terms_of(own, 0, Machinery(topology or machine(), mpi=mpi), world_size)
    return [term for term in found if not term.is_added]


def of_kind(found, kind):
    return [term for term in found if term.kind == kind]


def test_gpus_copy_down_and_up_and_the_host_divides_by_the_cells_threads():
    found = terms(2)
    assert [term.kind for term in found] == ["host", "mpi", "host_work", "host"]
    assert of_kind(found, "mpi")[0].choice == "Open MPI 5.0.11: reduce-scatter and all-gather"
    processes = terms(2, topology=load("cpu-2"), device="cpu")
    assert [term.kind for term in processes] == ["mpi", "host_work"], "the gradient is where MPI wants it"
    works = ((1, "host_work"), (4, "host_threads"))
    one, four = (of_kind(terms(2, threads=n), kind)[0].flow_s for n, kind in works)
    assert one == pytest.approx(4 * four)


def test_library_changes_the_algorithm_and_the_price():
    old = MpiLibrary("Open MPI", (4, 0, 7))
    (new_term,), (old_term,) = (of_kind(terms(4, mpi=one), "mpi") for one in (OPEN_MPI, old))
    assert "segmented ring" in old_term.choice
    assert old_term.latency_s > new_term.latency_s


def test_library_that_nobody_recorded_and_what_is_not_modelled_on_several_nodes_are_said():
    own = strategy_of(mpi_cell(2))
    prediction = Predictor(Machinery(machine())).predict(own)
    assert any("no measured launch says which MPI" in note for note in prediction.notes)
    known = Predictor(Machinery(machine(), mpi=MPICH)).predict(own)
    assert not any("which MPI" in note for note in known.notes)
    assert any("MPICH 5.0.2" in term.choice for term in known.terms)
    on_nodes = Predictor(Machinery(machine(4, nodes=2), mpi=OPEN_MPI)).predict(strategy_of(mpi_cell(8)))
    assert any("coll/han" in note for note in on_nodes.notes)


def test_access_between_gpus_does_not_matter_and_is_no_part_of_the_key():
    with_access, without = (strategy_of(mpi_cell(2, peer_access=peer)) for peer in (True, False))
    assert strategy_key(with_access) == strategy_key(without)
    machinery = Machinery(machine(), mpi=OPEN_MPI)
    assert transport_of(with_access, machinery, 2) == transport_of(without, machinery, 2) == "mpi"
    assert terms_of(with_access, 0, machinery, 2) == terms_of(without, 0, machinery, 2)


def test_one_bit_messages_go_by_mpi_with_their_copies():
    found = terms(4, "mpi_one_bit")
    assert [term.kind for term in found if "codec" not in term.kind] == ["host", "mpi", "host"] * 2
    assert of_kind(found, "mpi")[0].choice.endswith("messages")
    whole = sum(term.flow_s for term in of_kind(terms(4), "mpi"))
    assert sum(term.flow_s for term in of_kind(found, "mpi")) < whole / 10


@pytest.mark.parametrize(("device", "words", "kinds"), [
    ("cpu", "Horovod 0.28.1 over MPI", ["mpi"]), ("cpu", "Horovod 0.28.1 over Gloo", ["sends"]),
    ("cuda", "Horovod 0.28.1 over MPI, GPUs over NCCL", ["native", "horovod"]),
])  # fmt: skip
def test_horovod_is_priced_as_its_ranks_exchange(device, words, kinds):
    there = load("cpu-2") if device == "cpu" else machine()
    machinery = machinery_for(there, [], there, {"mpi": "Open MPI v5.0.11", "horovod": words})
    own = strategy_of(mpi_cell(2, "horovod", device=device))
    assert [term.kind for term in terms_of(own, 0, machinery, 2)] == kinds


def test_measured_cells_of_two_ranks_calibrate_four():
    known, asked = (of_kind(terms(n), "mpi") for n in (2, 4))
    true = [2.0 * sum(term.latency_s + term.flow_s for term in own) for own in (known, asked)]
    calibration = calibrate([Observation(None, known, true[0], 0.01, 2)])
    assert sum(calibration.seconds(term).value for term in asked) == pytest.approx(true[1], rel=0.1)


def test_sources_carry_the_recorded_library_to_the_prediction():
    sources = Sources([measured(mpi_cell(1, "none"), 0.01)], [], machine(), {"mpi": "MPICH Version: 5.0.2"})
    predictor, _ = sources.predictor(machine(), strategy_of)
    assert any("MPICH" in term.choice for term in predictor.predict(strategy_of(mpi_cell(2))).terms)


def test_probed_all_reduces_of_processes_calibrate_gloo():
    cpu = load("cpu-2")
    own = strategy_of(mpi_cell(2, "all_reduce", device="cpu"))
    nominal = sum(t.latency_s + t.flow_s for t in terms_of(own, 0, Machinery(cpu), 2))
    probed = [MeasuredTransfer("all_reduce", 2, size, False, size / 1e9, 0.01) for size in (1 << 22, 1 << 25)]
    predictor, _ = Sources([], probed, cpu).predictor(cpu, strategy_of)
    assert predictor.predict(own).exchange.value > 1.2 * nominal


def probed(sizes, factor, operation="mpi_all_reduce", num_ranks=2):
    """What a probe would measure on the example machine, slower than its file by `factor(bytes)`."""
    asked = [MeasuredTransfer(operation, num_ranks, size, False, 1.0, 0.01) for size in sizes]
    nominal = observations_of_transfers(asked, Machinery(machine(), mpi=OPEN_MPI))
    times = [sum(term.latency_s + term.flow_s for term in own.terms) for own in nominal]
    known = zip(asked, sizes, times, strict=True)
    return [replace(one, seconds=factor(size) * seconds) for one, size, seconds in known]


def predictor_of(transfers):
    libraries = {"mpi": "Open MPI v5.0.11"}
    return Sources([], transfers, machine(), libraries).predictor(machine(), strategy_of)[0]


def mpi_seconds(transfers, world_size, aggregator="mpi"):
    known = predictor_of(transfers).calibration
    return sum(known.seconds(term).value for term in of_kind(terms(world_size, aggregator), "mpi"))


SIZES = tuple(1 << power for power in range(16, 29, 2))


def test_probed_all_reduce_is_one_mpi_term_of_that_size():
    (one,) = observations_of_transfers(probed([1 << 24], lambda _: 1.0), Machinery(machine(), mpi=OPEN_MPI))
    (term,) = one.terms
    assert (term.kind, term.native_bytes, one.key) == ("mpi", float(1 << 24), None)
    assert term.choice == "Open MPI 5.0.11: reduce-scatter and all-gather"
    (of_cell,) = of_kind(terms(2), "mpi")
    again = probed([int(of_cell.native_bytes)], lambda _: 1.0)
    (same,) = observations_of_transfers(again, Machinery(machine(), mpi=OPEN_MPI))
    assert (same.terms[0].latency_s, same.terms[0].flow_s) == (of_cell.latency_s, of_cell.flow_s)


@pytest.mark.parametrize("world_size", [2, 4])
def test_probe_of_two_ranks_calibrates_mpi(world_size):
    nominal = sum(term.latency_s + term.flow_s for term in of_kind(terms(world_size), "mpi"))
    assert mpi_seconds([], world_size) == pytest.approx(nominal)
    assert mpi_seconds(probed(SIZES, lambda _: 2.5), world_size) == pytest.approx(2.5 * nominal, rel=0.02)


def test_probe_of_mpi_makes_its_prediction_more_certain_and_leaves_gloo_and_nccl_alone():
    own = strategy_of(mpi_cell(2))
    known = ([], probed(SIZES, lambda _: 1.0))
    without, with_probe = (predictor_of(transfers).predict(own).exchange for transfers in known)
    assert with_probe.relative_sd < without.relative_sd
    assert {name for name, _ in predictor_of(probed(SIZES, lambda _: 3.0)).calibration.names} == {"mpi"}
    others = probed(SIZES, lambda _: 3.0, "all_reduce")
    assert {name for name, _ in predictor_of(others).calibration.names} == {"native"}
    assert mpi_seconds(others, 2) == mpi_seconds([], 2)
    with_access = probed(SIZES, lambda _: 2.0)
    without = [replace(one, host_only=True) for one in with_access]
    assert mpi_seconds(without, 2) == mpi_seconds(with_access, 2), "access between GPUs does not matter"


def test_what_a_probed_size_took_beyond_the_fit_goes_by_size_and_only_to_all_reduces():
    size = int(of_kind(terms(2), "mpi")[0].native_bytes)
    slow_here = probed((size // 8, size, size * 8), lambda num_bytes: 3.0 if num_bytes == size else 1.0)
    nominal = sum(term.latency_s + term.flow_s for term in of_kind(terms(2), "mpi"))
    assert mpi_seconds(slow_here, 2) == pytest.approx(3.0 * nominal, rel=1e-3)
    assert all(term.native_bytes is None for term in of_kind(terms(2, "mpi_one_bit"), "mpi"))
