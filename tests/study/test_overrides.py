"""Studies by name or path, `key=value` on the command line; the shipped ones have the cells they are for."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import yaml

from scaling.aggregators.registry import BUILT_IN, create
from scaling.errors import StudyError
from scaling.study import workloads
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study, shipped_studies
from scaling.study.resolve import resolve
from scaling.workloads import registry

TEXT = """
name: by-hand
scaling: strong
world_sizes: [1, 2]
repeats: 2
parts:
  - kind: iteration
    workloads: [{model: {name: mlp, hidden: [8]}, dataset: digits, global_batch: 64}]
    aggregators: [none, ring]
    iterations: 20
  - kind: convergence
    workloads: [{model: mlp, dataset: digits, global_batch: 100}]
    aggregators: [ring]
    repeats: 1
"""


@pytest.fixture
def study(tmp_path: Path) -> str:
    path = tmp_path / "my"  # it needs no suffix
    path.write_text(TEXT)
    return str(path)


def aggregators(part) -> list[str]:
    return [component.name for component in part.aggregators]


class TestNames:
    @pytest.mark.parametrize("name", shipped_studies())
    def test_every_shipped_study_is_valid_and_can_be_resolved_where_its_devices_are(self, name):
        assert shipped_studies()[name].startswith("# "), "a comment for the list"
        study = load_study(name)
        assert study.name == name, "it is called like its file"
        for machine in (AvailableMachine(0, 2), AvailableMachine(4, 64)):
            if not machine.num_gpus and any(part.device == "cuda" for part in study.parts):
                with pytest.raises(StudyError, match="GPUs and 0 can be used"):
                    resolve(study, machine)
            else:
                assert resolve(study, machine).cells

    @pytest.mark.parametrize("name", ["converge-fcn", "converge-alexnet"])
    def test_captured_trainings_to_a_target_are_timed_too_so_that_it_can_be_predicted(self, name):
        same = [*("model", "dataset", "aggregator", "step", "world_size", "local_batch", "threads")]
        same += ("peer_access", "tf32", "momentum", "weight_decay", "nesterov")
        cells = [cell.to_dict() for cell in resolve(load_study(name), AvailableMachine(4, 64)).cells.values()]
        timed = [[cell[key] for key in same] for cell in cells if cell["kind"] == "iteration"]
        trained = [cell for cell in cells if cell["kind"] == "convergence" and cell["step"] == "captured"]
        assert trained
        assert all([cell[key] for key in same] in timed for cell in trained)

    def test_unknown_name_is_an_error_with_the_names_there_are(self):
        said = r"no study 'mnits': give a YAML file, or .*: .*mnist.*quickstart"
        with pytest.raises(StudyError, match=said):
            load_study("mnits")

    @pytest.mark.parametrize(("content", "said"), [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe\x00", r"it is no UTF-8 text \(line 1\)"),
        (b"name: [", "no valid YAML"),
    ])  # fmt: skip
    def test_file_that_is_no_study_is_an_error_with_its_name(self, tmp_path, content, said):
        if content is not None:
            (tmp_path / "my.yaml").write_bytes(content)
        with pytest.raises(StudyError, match=rf"my\.yaml: {said}"):
            load_study(str(tmp_path / "my.yaml"))


def of_parts(*keys):
    return lambda study: [[getattr(part, key) for key in keys] for part in study.parts]


def names(study):
    return [aggregators(part) for part in study.parts]


def hidden(study):
    return study.parts[0].workloads[0].model.parameters


class TestOverrides:
    @pytest.mark.parametrize(("overrides", "found", "expected"), [
        ([], of_parts("repeats"), [[2], [1]]),
        (["world_sizes=[1, 4]", "device=cpu"], of_parts("world_sizes", "device"), [[[1, 4], "cpu"]] * 2),
        # A key at the top replaces it in every part, one of one kind in those of that kind.
        (["repeats=5"], of_parts("repeats"), [[5], [5]]),
        (["aggregators=[tree]"], names, [["tree"], ["tree"]]),
        (["max_seconds=2.5", "epochs=2"],
         lambda study: (study.parts[0].max_seconds, study.parts[1].epochs), (2.5, 2)),
        # A dotted one goes by index into lists, and may set what was not there.
        (["parts.0.aggregators.1=tree"], names, [["none", "tree"], ["ring"]]),
        (["parts.1.epochs=9"], lambda study: study.parts[1].epochs, 9),
        # A kind chooses the parts of that kind.
        (["kind=iteration", "aggregators=[none]"], of_parts("kind", "iterations"), [["iteration", 20]]),
        (["kind=iteration", "aggregators=[none]"], names, [["none"]]),
        (["parts.0.workloads.0.model.hidden=[3, 4]"], hidden, {"hidden": [3, 4]}),
        (["repeats=5", "parts.1.repeats=6", "repeats=7"], of_parts("repeats"), [[7], [7]]),  # the later wins
    ])  # fmt: skip
    def test_value_is_read_as_yaml_and_put_in_its_place(self, study, overrides, found, expected):
        assert found(load_study(study, overrides)) == expected

    def test_study_without_parts_may_be_overridden(self, tmp_path):
        raw = yaml.safe_load(TEXT)
        raw.update(raw.pop("parts")[0])
        (tmp_path / "flat.yaml").write_text(yaml.safe_dump(raw))
        overrides = ["repeats=4", "workloads.0.global_batch=32", "aggregators.0=tree"]
        study = load_study(str(tmp_path / "flat.yaml"), overrides)
        assert (study.parts[0].repeats, study.parts[0].workloads[0].global_batch) == (4, [32])
        assert aggregators(study.parts[0]) == ["tree", "ring"]

    def test_top_level_key_replaces_it_in_workloads_too(self, tmp_path):
        path = tmp_path / "own.yaml"
        path.write_text(
            "{name: own, kind: convergence, scaling: strong, aggregators: [ring], world_sizes: [1], "
            "workloads: [{model: mlp, dataset: digits, global_batch: 8, epochs: 7},"
            " {first_available: [{model: mlp, dataset: digits, global_batch: 8, learning_rate: 0.5}]}]}"
        )
        part = load_study(str(path), ["epochs=1", "learning_rate=0.25"]).parts[0]
        assert (part.epochs, part.workloads[0].epochs) == (1, None)
        assert (part.learning_rate, part.workloads[1].first_available[0].learning_rate) == (0.25, None)


class TestWrongOverrides:
    @pytest.mark.parametrize(("override", "message"), [
        ("repeats", "override 'repeats' is not of the form key=value"),
        ("=3", "override '=3' is not of the form key=value"),
        ("repeats=[", r"override 'repeats=\[': no valid YAML"),
        ("parts.2.repeats=1", "parts is a list of 2; use an index from 0 to 1, not '2'"),
        ("parts.-1.repeats=1", "parts is a list of 2; use an index from 0 to 1, not '-1'"),
        ("parts.first.repeats=1", "parts is a list of 2; use an index from 0 to 1, not 'first'"),
        ("workloads.0.model=mlp", "the study has no 'workloads'; it has name, scaling, world_sizes"),
        ("parts.0.dataset.name=x", r"parts\.0 has no 'dataset'; it has kind, workloads"),
        ("parts.1.workloads.0.model.hidden=[1]", r"workloads\.0\.model is 'mlp', which has no 'hidden'"),
        ("repeets=3", "unknown key 'repeets'; did you mean 'repeats'"),
        ("parts.0.repeets=3", "unknown key 'parts.0.repeets'; did you mean 'repeats'"),
        ("repeats=0", "repeats is 0: input should be greater than 0"),
        ("parts=3", "'parts' must be a list of parts"),
        ("name=a=b", "name 'a=b' is not allowed"),  # a value may hold an equals sign
        ("kind=transfer", "'kind=transfer': the study has no part of that kind"),
    ])  # fmt: skip
    def test_message_names_what_was_given_and_what_there_is(self, study, override, message):
        with pytest.raises(StudyError, match=message):
            load_study(study, [override])

    def test_file_that_is_no_mapping_is_said_to_be_so(self, tmp_path):
        (tmp_path / "my.yaml").write_text("- 1\n")
        with pytest.raises(StudyError, match="a study is a mapping of keys"):
            load_study(str(tmp_path / "my.yaml"), ["repeats=3"])


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
    assert "arXiv 1608.07249" in shipped_studies()["paper"].splitlines()[1], "behind the schema's name"
    study = resolve(load_study("paper"), machine)
    cells = study.cells.values()
    for model, batch in BATCHES:
        of_model = [cell for cell in cells if cell.model == model]
        assert {cell.aggregator for cell in of_model} == PRESETS | {"none", "all_reduce"}
        assert {cell.global_batch for cell in of_model} == {batch}
        assert {cell.world_size for cell in of_model} == {1, 2, 4}
    assert {(cell.scaling, cell.kind) for cell in cells} == {("strong", "iteration")}
    assert set(study.repeats.values()) == {3}


LOSSY = {
    "one_bit", "one_bit_flat", "power_sgd", "top_k", "ef_sign", "qsgd",
    "one_bit_flat(error_feedback=False)", "power_sgd(error_feedback=False)", "top_k(error_feedback=False)",
    "ef_sign(error_feedback=False)",
}  # fmt: skip


@pytest.mark.parametrize(("num_gpus", "sharing"), [(8, None), (4, None), (3, 2), (2, 2), (1, 4)])
def test_every_codec_trains_beside_the_exact_mean_at_one_rate(num_gpus, sharing):
    every = resolve(load_study("compression", []), AvailableMachine(num_gpus, 8)).cells.values()
    cells = [cell for cell in every if cell.kind == "convergence"]
    by_label = {cell.aggregator_label: cell for cell in cells}
    assert set(by_label) == LOSSY | {"host_parallel"}
    assert {cell.aggregator_label for cell in cells if cell.lossy} == LOSSY
    assert {(cell.world_size, cell.workers_per_gpu) for cell in cells} == {(4, sharing)}
    assert len({(cell.learning_rate, cell.momentum, cell.epochs, cell.global_batch) for cell in cells}) == 1
    assert {(cell.kind, cell.model, cell.dataset) for cell in cells} == {("convergence", "fcn-r", "mnist")}
    assert {c.aggregator_parameters["density"] for c in every if c.aggregator == "top_k"} == {0.01}
    timed = [cell for cell in every if cell.kind == "iteration"]
    seen = {(cell.world_size, cell.aggregator_label) for cell in timed if cell.world_size > 1}
    aggregators = {"none", "all_reduce", *(name for name in LOSSY if "(" not in name)}
    # A batch of 256 is not for 3 workers.
    assert seen == {(num_gpus, name) for name in aggregators if num_gpus not in (1, 3)}
    assert {cell.workers_per_gpu for cell in timed} == {None}


@pytest.fixture
def created(monkeypatch):
    counts: Counter[str] = Counter()
    for registered, what in ((registry.DATASETS, "data set"), (registry.MODELS, "model")):

        def load(name, load=registered.load, what=what):
            counts[what] += 1
            return load(name)

        monkeypatch.setattr(registered, "load", load)
    return counts


@pytest.mark.parametrize("name", ["mnist", "quickstart", "paper"])
def test_data_sets_and_models_are_created_once_a_workload(name, created):
    study = load_study(name)
    cells = resolve(study, AvailableMachine(num_gpus=4, num_cores=16)).trained
    choices = [choice for part in study.parts for choice in part.workloads]
    alternatives = sum(len(getattr(choice, "first_available", [choice])) for choice in choices)
    assert len(cells) > alternatives
    assert created["model"] == len(choices)
    assert created["data set"] <= alternatives


def test_alternative_that_is_not_there_has_no_model(created, monkeypatch):
    raw = {"model": "no-such-model", "dataset": "mnist", "global_batch": 64}
    there = {"model": "mlp", "dataset": "digits", "global_batch": 64}
    monkeypatch.setattr("scaling.workloads.mnist.Mnist.available", lambda self: False)
    choice = workloads.Alternatives.model_validate({"first_available": [raw, there]})
    assert workloads.choose(choice, "cpu", lambda _: None).model.name == "mlp"
    assert created == {"data set": 2, "model": 1}


def benchmark_cells(name, num_gpus):
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.yaml"
    return resolve(load_study(str(path)), AvailableMachine(num_gpus, 16)).trained


def test_compute_curves_hold_every_local_batch_of_one_to_four_workers_within_a_minute():
    batches, cells = {}, benchmark_cells("compute_curves", 1)
    assert sum(cell.max_seconds for cell in cells) < 60
    for cell in cells:
        assert (cell.world_size, cell.aggregator, cell.device) == (1, "none", "cuda")
        batches.setdefault((cell.model_label, cell.step), set()).add(cell.local_batch)
    for step in ("eager", "captured", "overlapped"):
        assert batches["resnet-56", step] == {16, 32, 64, 128}
        assert batches["fcn-r", step] == {512, 1024, 2048, 4096}
        assert batches["fcn-s4", step] == {16, 32, 64}


def test_every_network_has_its_step_alone_under_ddp_and_beside_messages_with_and_without_access():
    arms = {}
    for cell in benchmark_cells("overlap_slowdown", 2):
        assert (cell.step, cell.world_size, cell.device) == ("overlapped", 2, "cuda")
        arms.setdefault((cell.model_label, cell.local_batch), set()).add((cell.aggregator, cell.peer_access))
    assert len(arms) == 5
    wanted = {(name, access) for name in ("none", "no_op", "all_reduce") for access in (True, False)}
    assert all(of_network == wanted for of_network in arms.values())
