"""What identifies an environment, and what is said when two differ."""

import copy
import json
from pathlib import Path

import pytest

from scaling.errors import StoreError
from scaling.measure.environment import IDENTITY, collect, git_state, require_same, settings

FOLDER = Path("results/by-hand")

ENVIRONMENT = {
    "hostname": "here",
    "command": "scaling run mnist",
    "cpu": {"model": "A fast one", "usable_cores": 8},
    "memory_bytes": 2**34,
    "gpus": [{"name": "Big", "memory_bytes": 2**37}] * 2,
    "versions": {"torch": "2.6.0", "driver": "580.1", "cudnn": 90100},
    "settings": {"NCCL_ALGO": "Ring"},
    "git": {"commit": "abc", "dirty": False},
}


class TestSettings:
    @pytest.mark.parametrize(
        "name",
        [
            "NCCL_P2P_DISABLE",
            "CUDA_LAUNCH_BLOCKING",
            "CUBLAS_WORKSPACE_CONFIG",
            "NVIDIA_TF32_OVERRIDE",
            "OMP_PROC_BIND",
            "MKL_NUM_THREADS",
            "KMP_AFFINITY",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        ],
    )
    def test_variable_that_changes_speed_or_bits_is_a_setting(self, name):
        assert settings({name: "1"}) == {name: "1"}

    @pytest.mark.parametrize(
        "name",
        [
            "HOME",
            "PATH",
            "RANK",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",  # torchrun's own, new with each launch
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "OMP_NUM_THREADS",  # part of the cell
            "CUDA_HOME",
            "CUDA_PATH",
            "CUDA_VERSION",
            "MY_NCCL_ALGO",
        ],
    )
    def test_variable_that_does_not_is_none(self, name):
        assert settings({name: "1"}) == {}

    def test_settings_are_in_order_of_their_names(self):
        assert list(settings({"NCCL_PROTO": "LL", "CUDA_CACHE_DISABLE": "1", "NCCL_ALGO": "Tree"})) == [
            "CUDA_CACHE_DISABLE",
            "NCCL_ALGO",
            "NCCL_PROTO",
        ]


class TestRequireSame:
    def test_same_environment_is_accepted(self):
        require_same(ENVIRONMENT, copy.deepcopy(ENVIRONMENT), FOLDER)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("hostname", "there"),
            ("command", "pytest"),
            ("memory_bytes", 1),
            ("git", None),
        ],
    )
    def test_what_is_recorded_for_people_may_differ(self, field, value):
        require_same(ENVIRONMENT, {**ENVIRONMENT, field: value}, FOLDER)

    @pytest.mark.parametrize(
        ("field", "value", "named"),
        [
            ("cpu", {"model": "A fast one", "usable_cores": 4}, r"cpu\.usable_cores was 8 and is 4"),
            ("gpus", [], r"gpus was \[.*\] and is \[\]"),
            (
                "versions",
                {**ENVIRONMENT["versions"], "torch": "2.7.0"},
                r"versions\.torch was '2.6.0' and is '2.7.0'",
            ),
            ("settings", {}, r"settings\.NCCL_ALGO was 'Ring' and is None"),
            (
                "settings",
                {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
                r"settings\.NCCL_PROTO was None and is 'LL'",
            ),
        ],
    )
    def test_difference_is_an_error_that_names_field_and_both_values(self, field, value, named):
        with pytest.raises(
            StoreError, match=f"by-hand was measured in another environment: {named}; .*another --out"
        ):
            require_same(ENVIRONMENT, {**ENVIRONMENT, field: value}, FOLDER)

    def test_field_that_is_missing_on_one_side_is_a_difference(self):
        old = {key: value for key, value in ENVIRONMENT.items() if key != "versions"}
        with pytest.raises(StoreError, match="versions was None"):
            require_same(old, ENVIRONMENT, FOLDER)


class TestCollect:
    def test_environment_is_equal_to_itself_through_json(self):
        collected = collect({"NCCL_ALGO": "Ring", "HOME": "/"})
        assert set(IDENTITY) <= set(collected)
        assert collected["settings"] == {"NCCL_ALGO": "Ring"}
        require_same(json.loads(json.dumps(collected)), collected, FOLDER)

    def test_folder_outside_a_checkout_has_no_commit(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        assert git_state(tmp_path) is None
