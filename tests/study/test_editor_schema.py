"""The JSON schema of a study file takes what the tool takes."""

import json

import jsonschema
import pytest
import yaml

from scaling.study.overrides import shipped_studies
from scaling.study.schema import editor_schema
from tests.made import WORKLOAD
from tests.test_reference_results import REFERENCE

CHECK = jsonschema.Draft202012Validator(editor_schema())


def test_it_is_a_schema_and_printed(call):
    jsonschema.Draft202012Validator.check_schema(editor_schema())
    code, out, _ = call("list", "schema")
    assert (code, json.loads(out)) == (0, editor_schema())


@pytest.mark.parametrize("name", shipped_studies())
def test_shipped_studies_are_taken(name):
    CHECK.validate(yaml.safe_load(shipped_studies()[name]))


@pytest.mark.parametrize("name", ["mnist-4xh200", "converge-fcn-2xh200"])
def test_a_written_study_is_taken(name):
    CHECK.validate(yaml.safe_load((REFERENCE / name / "study.yaml").read_text()))


@pytest.mark.parametrize(
    ("keys", "is_taken"),
    [
        ({}, True),
        ({"world_sizes": "auto", "step": "captured"}, True),
        ({"aggregators": [{"name": "one_bit", "threshold": "mean"}]}, True),
        ({"step": "capture"}, False),
        ({"wordl_sizes": [1]}, False),
        ({"world_sizes": "some"}, False),
        ({"repeats": 0}, False),
        ({"workloads": [{**WORKLOAD, "batch": 3}]}, False),
        ({"aggregators": [3]}, False),
        ({"parts": [{"kind": "transfer", "epochs": 3}]}, False),
    ],
)
def test_unknown_keys_and_wrong_values_are_refused(keys, is_taken):
    study = {"name": "mine", "scaling": "strong", "world_sizes": 1, "workloads": [WORKLOAD], **keys}
    assert CHECK.is_valid(study) == is_taken
