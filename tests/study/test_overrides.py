"""Studies by name or path, and `key=value` on the command line."""

from pathlib import Path

import pytest
import yaml

from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study, shipped_studies
from scaling.study.resolve import resolve

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
    path = tmp_path / "my.yaml"
    path.write_text(TEXT)
    return str(path)


def aggregators(part) -> list[str]:
    return [component.name for component in part.aggregators]


class TestNames:
    @pytest.mark.parametrize("name", shipped_studies())
    def test_every_shipped_study_is_valid_and_called_like_its_file(self, name):
        assert load_study(name).name == name

    @pytest.mark.parametrize("name", shipped_studies())
    @pytest.mark.parametrize("machine", [AvailableMachine(0, 2), AvailableMachine(4, 64)], ids=str)
    def test_every_shipped_study_can_be_resolved_where_its_devices_are(self, name, machine):
        study = load_study(name)
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

    @pytest.mark.parametrize("name", shipped_studies())
    def test_every_shipped_study_begins_with_a_comment_for_the_list(self, name):
        assert shipped_studies()[name].startswith("# ")

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

    def test_file_needs_no_suffix(self, tmp_path):
        (tmp_path / "study").write_text(TEXT)
        assert load_study(str(tmp_path / "study")).name == "by-hand"


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
        (["parts.0.workloads.0.model.hidden=[3, 4]"], hidden, {"hidden": [3, 4]}),
        (["repeats=5", "parts.1.repeats=6", "repeats=7"], of_parts("repeats"), [[7], [7]]),  # the later wins
    ])  # fmt: skip
    def test_value_is_read_as_yaml_and_put_in_its_place(self, study, overrides, found, expected):
        assert found(load_study(study, overrides)) == expected

    def test_value_may_hold_an_equals_sign(self, study):
        with pytest.raises(StudyError, match="name 'a=b' is not allowed"):
            load_study(study, ["name=a=b"])

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
    ])  # fmt: skip
    def test_message_names_what_was_given_and_what_there_is(self, study, override, message):
        with pytest.raises(StudyError, match=message):
            load_study(study, [override])

    def test_file_that_is_no_mapping_is_said_to_be_so(self, tmp_path):
        (tmp_path / "my.yaml").write_text("- 1\n")
        with pytest.raises(StudyError, match="a study is a mapping of keys"):
            load_study(str(tmp_path / "my.yaml"), ["repeats=3"])


class TestKinds:
    def test_kind_chooses_the_parts_of_that_kind(self, study):
        (part,) = load_study(study, ["kind=iteration", "aggregators=[none]"]).parts
        assert (part.kind, part.iterations, aggregators(part)) == ("iteration", 20, ["none"])

    def test_kind_that_no_part_has_is_an_error(self, study):
        with pytest.raises(StudyError, match="'kind=transfer': the study has no part of that kind"):
            load_study(study, ["kind=transfer"])
