"""Ranks that were started with different things, or have built different models, are named."""

import pytest
import torch
from torch import nn

from scaling.errors import ExchangeError, LaunchError
from scaling.process_group.in_process import run_in_process
from scaling.study.rank.prepared_step import require_same_model
from scaling.study.same_start import require_same_start, start_facts

SAME = {"arguments": "s.yaml", "the study file s.yaml": "ab12", "torch": "2.6"}


def test_ranks_that_were_started_with_the_same_go_on():
    require_same_start([SAME, SAME])
    require_same_start([SAME, {**SAME, "the study file s.yaml": None}])


@pytest.mark.parametrize(("changed", "said"), [
    ({"arguments": "s.yaml seed=1"}, "arguments: s.yaml seed=1 on rank 2, s.yaml on rank 0"),
    ({"the study file s.yaml": "cd34"}, "the study file s.yaml: cd34 on rank 2, ab12 on rank 0"),
])  # fmt: skip
def test_rank_that_was_started_with_something_else_is_named(changed, said):
    with pytest.raises(LaunchError, match="ranks were not started with the same: ") as error:
        require_same_start([SAME, SAME, {**SAME, **changed}])
    assert said in str(error.value)


def test_study_arguments_own_code_and_versions_are_facts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "mine_of_this_test.py"
    module.write_text("a = 1\n")
    study = tmp_path / "s.yaml"
    study.write_text("aggregators: ['mine_of_this_test:Mine', 'not_there_at_all:Mine']\n")
    first = start_facts(str(study), [str(study)])
    assert first["torch"] == torch.__version__
    assert first["the code of not_there_at_all"] is None
    module.write_text("a = 2\n")
    second = start_facts(str(study), [str(study)])
    assert {name for name in first if first[name] != second[name]} == {"the code of mine_of_this_test"}
    missing = str(tmp_path / "missing.yaml")
    assert start_facts(missing, [])[f"the study file {missing}"] is None


def model_of(rank, what):
    torch.manual_seed(rank if what == "seed" else 0)
    width = 4 if what == "width" and rank == 2 else 2
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))


def test_models_that_are_the_same_go_on():
    run_in_process(3, lambda group: require_same_model(model_of(group.rank, ""), group))


@pytest.mark.parametrize(("what", "said"), [
    ("width", "rank 2 has built another model than rank 0: 0.weight is [4, 3] float32 on rank 2, [2, 3]"),
    ("seed", "rank 1 has built another model than rank 0: 0.weight has other initial values"),
])  # fmt: skip
def test_rank_with_another_model_is_named_on_every_rank(what, said):
    def rank(group):
        with pytest.raises(ExchangeError) as error:
            require_same_model(model_of(group.rank, what), group)
        return str(error.value)

    assert all(message.startswith(said) for message in run_in_process(3, rank))
