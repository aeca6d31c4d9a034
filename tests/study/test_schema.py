"""What may stand in a study file; every error names the key, what is allowed, and the rule."""

import json
import re
from importlib import resources
from typing import Any

import jsonschema
import pytest
import yaml

from scaling.errors import StudyError
from scaling.study.kinds.convergence import ConvergencePart
from scaling.study.kinds.iteration import IterationPart
from scaling.study.overrides import shipped_studies
from scaling.study.parts import Alternatives
from scaling.study.schema import editor_schema, parse_study
from tests.made import ABSENT, WORKLOAD, made_study
from tests.test_reference_results import REFERENCE


def problems(**changes: Any) -> str:
    with pytest.raises(StudyError) as caught:
        made_study(**changes)
    message = str(caught.value)
    assert all(line.startswith("my.yaml: ") for line in message.splitlines())
    return message


class TestWhatIsAllowed:
    def test_smallest_study_has_one_iteration_part_with_defaults(self):
        (part,) = made_study().parts
        assert isinstance(part, IterationPart)
        assert (part.kind, part.step, part.repeats, part.device) == ("iteration", ["eager"], 1, "auto")
        assert (part.optimizer, part.accumulate, part.wire, part.seed) == (["sgd"], [1], ["float32"], [0])

    def test_axis_may_be_one_value_or_several_and_a_component_a_name_or_a_mapping_with_parameters(self):
        workload = {**WORKLOAD, "global_batch": [32, 64]}
        aggregators = ["ring", {"name": "one_bit", "threshold": "mean"}]
        (part,) = made_study(world_sizes=2, seed=7, workloads=[workload], aggregators=aggregators).parts
        assert (part.world_sizes, part.seed, part.workloads[0].global_batch) == ([2], [7], [32, 64])
        expected = [("ring", {}), ("one_bit", {"threshold": "mean"})]
        assert [(one.name, one.parameters) for one in part.aggregators] == expected

    def test_keys_beside_parts_are_defaults_of_every_part_and_those_of_one_kind_of_that_kind_alone(self):
        parts = [{"kind": "iteration"}, {"kind": "convergence", "repeats": 5}]
        first, second = made_study(repeats=3, epochs=4, warmup=2, parts=parts).parts
        assert (first.repeats, second.repeats, first.warmup, second.epochs) == (3, 5, 2, 4)
        assert isinstance(second, ConvergencePart)

    def test_workload_may_be_the_first_available_of_several(self):
        (part,) = made_study(workloads=[{"first_available": [WORKLOAD, WORKLOAD]}]).parts
        assert isinstance(part.workloads[0], Alternatives)
        assert len(part.workloads[0].first_available) == 2

    def test_weak_scaling_takes_a_local_batch_and_a_number_that_yaml_takes_for_a_text_is_a_number(self):
        workload = {"model": "mlp", "dataset": "digits", "local_batch": 8}
        (part,) = made_study(scaling="weak", workloads=[workload], learning_rate="1e-3").parts
        assert (part.workloads[0].local_batch, part.learning_rate) == ([8], 1e-3)


class TestUnknownKeys:
    @pytest.mark.parametrize(("changes", "key", "meant"), [
        ({"repeets": 3}, "repeets", "repeats"),
        ({"worldsizes": [1]}, "worldsizes", "world_sizes"),
        ({"parts": [{"repeets": 3}]}, "parts.0.repeets", "repeats"),
        ({"repeets": 3, "parts": [{}]}, "repeets", "repeats"),
        ({"workloads": [{**WORKLOAD, "epoch": 3}]}, "workloads.0.epoch", "epochs"),
        ({"workloads": [{"first_available": [WORKLOAD, {**WORKLOAD, "globalbatch": 3}]}]},
         "workloads.0.first_available.1.globalbatch", "global_batch"),
        ({"parts": [{}, {"workloads": [{**WORKLOAD, "modle": "mlp"}]}]}, "parts.1.workloads.0.modle",
         "model"),
    ])  # fmt: skip
    def test_misspelt_key_is_named_with_its_place_and_what_was_meant(self, changes, key, meant):
        message = problems(**changes)
        assert f"unknown key '{key}'; did you mean '{meant}'? (allowed: " in message
        allowed = re.search(r"\(allowed: (.*)\)", message)
        assert allowed is not None
        assert meant in allowed[1].split(", ")

    @pytest.mark.parametrize("key", ["workload", "choice"])
    def test_misspelt_key_that_is_a_word_of_our_own_is_named(self, key):
        assert f"unknown key '{key}'" in problems(**{key: []})
        assert f"unknown key 'parts.0.{key}'" in problems(parts=[{key: []}])
        assert f"unknown key 'workloads.0.{key}'" in problems(workloads=[{**WORKLOAD, key: 1}])

    @pytest.mark.parametrize(("changes", "said"), [
        ({"epochs": 3}, "key 'epochs' belongs to kind: convergence; leave it out, or change the part's kind"),
        ({"parts": [{"kind": "convergence", "warmup": 1}]},
         "key 'parts.0.warmup' belongs to kind: iteration"),
        *(({"workloads": [{**WORKLOAD, key: value}]},
           f"key 'workloads.0.{key}' belongs to kind: convergence")
          for key, value in (("epochs", 3), ("target_accuracy", 0.9))),
    ])  # fmt: skip
    def test_key_of_another_kind_says_so(self, changes, said):
        assert said in problems(**changes)


class TestMissingKeys:
    @pytest.mark.parametrize(("changes", "key"), [
        *(({key: ABSENT}, f"'{key}' is missing")
          for key in ("name", "workloads", "aggregators", "world_sizes")),
        ({"scaling": ABSENT},
         "'scaling' is missing (strong keeps the global batch, weak the local batch)"),  # never implied
        ({"parts": [{"workloads": [{"model": "mlp", "global_batch": 3}]}]},
         "'parts.0.workloads.0.dataset' is missing"),
    ])  # fmt: skip
    def test_key_that_is_missing_is_named_with_its_place(self, changes, key):
        assert f"key {key}" in problems(**changes)

    def test_all_that_is_wrong_is_said_at_once(self):
        message = problems(workloads=ABSENT, repeets=1, world_sizes=[0])
        assert len(message.splitlines()) == 3


class TestValues:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"world_sizes": [0, 2]}, "world_sizes.0 is 0: input should be greater than 0"),
            ({"world_sizes": [2, -1]}, "world_sizes.1 is -1: input should be greater than 0"),
            ({"world_sizes": [True]}, "world_sizes.0 is True: input should be a valid integer"),
            ({"world_sizes": [1.5]}, "world_sizes.0 is 1.5: input should be a valid integer"),
            ({"world_sizes": []}, "world_sizes is []: "),
            ({"seed": []}, "seed is []: a list needs one value at least"),
            ({"seed": [-1]}, "seed.0 is -1: input should be greater than or equal to 0"),
            ({"peer_access": []}, "peer_access is []: a list needs one value at least"),
            ({"tf32": []}, "tf32 is []: a list needs one value at least"),
            ({"aggregators": []}, "aggregators is []: list should have at least 1 item"),
            ({"aggregators": "ring"}, "aggregators is 'ring': input should be a valid list"),
            ({"aggregators": [{"threshold": "mean"}]},
             "aggregators.0 is {'threshold': 'mean'}: a component is a name, or a mapping with 'name'"),
            ({"aggregators": [None]}, "aggregators.0 is None: a component is a name"),
            ({"scaling": "both"}, "scaling is 'both': input should be 'strong' or 'weak'"),
            ({"step": "lazy"}, "step.0 is 'lazy': input should be 'eager', 'overlapped' or 'captured'"),
            ({"device": "tpu"}, "device is 'tpu': input should be 'auto', 'cpu' or 'cuda'"),
            ({"missing_devices": "skip"}, "missing_devices is 'skip': input should be 'error' or 'drop'"),
            ({"repeats": 0}, "repeats is 0: input should be greater than 0"),
            ({"threads": 0}, "threads is 0: input should be greater than 0"),
            ({"warmup": 0}, "warmup is 0: input should be greater than 0"),
            ({"iterations": "many"}, "iterations is 'many': input should be a valid integer"),
            ({"max_seconds": 0}, "max_seconds is 0: input should be greater than 0"),
            ({"learning_rate": 0}, "learning_rate is 0: input should be greater than 0"),
            ({"momentum": 1}, "momentum is 1: input should be less than 1"),
            ({"kind": "convergence", "target_accuracy": 97},
             "target_accuracy is 97: input should be less than or equal to 1"),
            ({"workloads": []}, "workloads is []: list should have at least 1 item"),
            ({"workloads": [{**WORKLOAD, "global_batch": []}]},
             "workloads.0.global_batch is []: a list needs one value at least"),
            ({"workloads": [{**WORKLOAD, "global_batch": [64, 0]}]},
             "workloads.0.global_batch.1 is 0: input should be greater than 0"),
            ({"workloads": [{"first_available": []}]},
             "workloads.0.first_available is []: list should have at least 1 item"),
            ({"parts": [{}, {"repeats": 0}]}, "parts.1.repeats is 0: input should be greater than 0"),
        ],
        ids=str,
    )  # fmt: skip
    def test_wrong_value_is_an_error_with_key_value_and_rule(self, changes, expected):
        assert f"my.yaml: {expected}" in problems(**changes)

    @pytest.mark.parametrize("kind", ["devices", "Iteration", ["iteration"], None])
    def test_unknown_kind_is_an_error_with_the_kinds_there_are(self, kind):
        assert f"kind is {kind!r}; allowed: iteration, convergence" in problems(kind=kind)
        assert f"parts.0.kind is {kind!r}; allowed: iteration" in problems(parts=[{"kind": kind}])
        assert f"parts.0.kind is {kind!r}; allowed: iteration" in problems(kind=kind, parts=[{}])

    @pytest.mark.parametrize("name", ["../elsewhere", "a b", "", ".hidden", 3, None, "a/b", "a\n", "a" * 256])
    def test_name_that_is_no_folders_name_is_an_error(self, name):
        assert f"name {name!r:.60} is not allowed; use letters, digits" in problems(name=name)

    @pytest.mark.parametrize("parts", [[], 3, {"kind": "iteration"}, None])
    def test_parts_must_be_a_list_of_mappings(self, parts):
        assert "'parts' must be a list of parts" in problems(parts=parts)
        assert "parts.1 must be a mapping of keys" in problems(parts=[{}, "iteration"])

    @pytest.mark.parametrize("raw", [None, [], "text", 3])
    def test_file_that_is_no_mapping_is_an_error(self, raw):
        with pytest.raises(StudyError, match=r"my\.yaml: a study is a mapping of keys"):
            parse_study(raw, "my.yaml")


class TestBatchRule:
    @pytest.mark.parametrize(
        ("scaling", "wanted", "other"),
        [("strong", "global_batch", "local_batch"), ("weak", "local_batch", "global_batch")],
    )
    @pytest.mark.parametrize("given", ["other", "both", "none"])
    def test_batch_must_be_the_one_that_the_scaling_keeps(self, scaling, wanted, other, given):
        batches = {"other": {other: 8}, "both": {wanted: 8, other: 8}, "none": {}}[given]
        message = problems(scaling=scaling, workloads=[{"model": "mlp", "dataset": "digits", **batches}])
        said = f"workloads.0: scaling: {scaling} keeps the {wanted} constant over world sizes, so the "
        assert f"{said}workload needs {wanted} and must not have {other}" in message
        wrong = {"model": "mlp", "dataset": "digits", **batches}
        message = problems(scaling=scaling, parts=[{"workloads": [{"first_available": [wrong]}]}])
        assert f"parts.0.workloads.0: scaling: {scaling}" in message, "alternatives are checked too"


CHECK = jsonschema.Draft202012Validator(editor_schema())


def test_editors_get_a_schema_and_it_is_printed(call):
    jsonschema.Draft202012Validator.check_schema(editor_schema())
    code, out, _ = call("list", "schema")
    assert (code, json.loads(out)) == (0, editor_schema())


def test_shipped_studies_name_the_schema_that_is_installed_beside_them():
    folder = resources.files("scaling.study") / "studies"
    (line,) = {text.partition("\n")[0] for text in shipped_studies().values()}
    before, _, name = line.partition("=")
    assert before == "# yaml-language-server: $schema"
    assert json.loads((folder / name).read_text(encoding="utf-8")) == editor_schema()


@pytest.mark.parametrize("text", [
    *shipped_studies().values(),
    *((REFERENCE / name / "study.yaml").read_text() for name in ("mnist-4xh200", "converge-fcn-2xh200")),
], ids=lambda text: text[:30])  # fmt: skip
def test_editors_schema_takes_shipped_and_written_studies(text):
    CHECK.validate(yaml.safe_load(text))


@pytest.mark.parametrize(("keys", "is_taken"), [
    ({}, True),
    ({"world_sizes": "auto", "step": "captured"}, True),
    ({"aggregators": [{"name": "one_bit", "threshold": "mean"}]}, True),
    ({"step": "capture"}, False), ({"wordl_sizes": [1]}, False), ({"world_sizes": "some"}, False),
    ({"repeats": 0}, False),
    ({"workloads": [{**WORKLOAD, "batch": 3}]}, False),
    ({"aggregators": [3]}, False),
    ({"parts": [{"kind": "transfer", "epochs": 3}]}, False),
])  # fmt: skip
def test_editors_schema_refuses_unknown_keys_and_wrong_values(keys, is_taken):
    study = {"name": "mine", "scaling": "strong", "world_sizes": 1, "workloads": [WORKLOAD], **keys}
    assert CHECK.is_valid(study) == is_taken
