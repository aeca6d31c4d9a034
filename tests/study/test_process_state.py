"""What one cell changes in the process is put back; ranks that began with other things are named."""

import gc
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data._utils import signal_handling

from scaling.errors import ExchangeError, LaunchError
from scaling.process_group.in_process import run_in_process
from scaling.registry import trust
from scaling.study.parts import Workload
from scaling.study.rank.context import RankSummary, notes_of
from scaling.study.rank.launch import CellRunner
from scaling.study.rank.prepared_step import require_same_model
from scaling.study.rank.process_state import CLOCK, SET_BY_IMPORTS, ProcessState
from scaling.study.same_start import require_same_start, start_facts
from scaling.study.workloads import ChosenWorkload
from scaling.workloads.base import DataShape, Model
from scaling.workloads.registry import create_dataset
from tests.study.test_run_cell import TIMED, group  # noqa: F401 (a fixture)


def _hook(*_):
    return None


CHANGES = {
    "the gradient mode": lambda: torch.set_grad_enabled(False),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "hooks on nn.Module": lambda: nn.modules.module.register_module_forward_hook(_hook),
    "the working folder": lambda: os.chdir("/"),
    "signal handlers": lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGUSR2, signal.SIGHUP)],
    "environment variables": os.environ.clear,
    "warnings filters": lambda: warnings.simplefilter("error"),
    "the garbage collector": gc.disable,
    "standard output": lambda: setattr(sys, "stdout", None),
    "the recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7),
    "the umask": lambda: os.umask(0o035),
    "numpy's handling of errors": lambda: np.seterr(all="raise"),
    CLOCK: lambda: setattr(time, "perf_counter", lambda: 0.0),
}
if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
    CHANGES["the cores it may use"] = lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _own_variables():
    return {name: value for name, value in os.environ.items() if name not in SET_BY_IMPORTS}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_named_and_put_back(name):
    state, variables, folder = ProcessState(), _own_variables(), os.getcwd()
    CHANGES[name]()
    try:
        assert name in state.put_back()
    finally:
        state.put_back()
    assert state.put_back() == []
    assert (_own_variables(), os.getcwd()) == (variables, folder)
    assert torch.is_grad_enabled()
    assert gc.isenabled()
    assert torch.ones(1).device.type == "cpu"
    assert torch.ones(1).dtype == torch.float32


def test_model_that_is_built_to_be_counted_leaves_nothing_changed():
    def build(shape):
        os.chdir("/")
        torch.set_default_device("meta")
        return nn.Linear(*shape.input_shape, shape.num_classes)

    folder, shape = os.getcwd(), DataShape((4,), 3)
    model = Model("moving", build, shape, "synthetic", "none")
    keys = Workload(model=model.name, dataset="synthetic")
    assert ChosenWorkload(keys, model, create_dataset("synthetic"), shape).module
    assert (os.getcwd(), torch.ones(1).device.type) == (folder, "cpu")


def test_what_libraries_set_as_they_are_imported_is_no_change_and_silence_for_all_is():
    state = ProcessState()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)
        os.environ["KMP_INIT_AT_FORK"] = os.environ.get("KMP_INIT_AT_FORK", "FALSE")
        assert state.put_back() == []
        warnings.simplefilter("ignore")
        assert state.put_back() == ["warnings filters"]


def test_what_torchs_loader_sets_for_its_workers_stays(monkeypatch):
    before, state = signal.getsignal(signal.SIGCHLD), ProcessState()
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
    try:
        signal_handling._set_SIGCHLD_handler()
        own = signal.getsignal(signal.SIGCHLD)
        assert state.put_back() == []
        assert signal.getsignal(signal.SIGCHLD) is own is not before
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_notes_name_what_any_rank_changed():
    ranks = [RankSummary(), RankSummary(changed_state=["the default dtype"])]
    assert ["the default dtype" in note for note in notes_of(ranks)] == [True]
    assert notes_of([RankSummary()]) == []


class Leaky(nn.Module):
    steps: ClassVar[list[str]] = []

    def __init__(self, shape: DataShape) -> None:
        super().__init__()
        self.layer = nn.Linear(64, shape.num_classes)

    def forward(self, inputs):
        self.steps.append("step")
        if len(self.steps) == 3:
            torch.set_grad_enabled(False)
            torch.set_default_dtype(torch.float64)
        return self.layer(inputs.flatten(1))


def halving(shape: DataShape) -> nn.Module:
    clock = time.perf_counter
    time.perf_counter = lambda: clock() / 2
    return nn.Sequential(nn.Flatten(), nn.Linear(64, shape.num_classes))


leaky = Model("leaky", Leaky, None, "digits", "these tests", {})
halved = Model("halved", halving, None, "digits", "these tests", {})


def test_cell_after_one_that_fails_by_what_it_changed_is_measured(group):  # noqa: F811
    trust([f"{__name__}:leaky"])
    runner = CellRunner(torch.device("cpu"))
    own = replace(TIMED, model=f"{__name__}:leaky", model_parameters={})
    with pytest.raises(RuntimeError, match="does not require grad"):
        runner.run(own, group, lambda _: None)
    summary = runner.run(TIMED, group, lambda _: None)
    assert summary.num_parameters
    assert summary.changed_state == []


def test_cell_that_replaces_the_clock_has_no_result(group):  # noqa: F811
    trust([f"{__name__}:halved"])
    own = replace(TIMED, model=f"{__name__}:halved", model_parameters={})
    clock = time.perf_counter
    with pytest.raises(Exception, match=CLOCK):
        CellRunner(torch.device("cpu")).run(own, group, lambda _: None)
    assert time.perf_counter is clock


SAME = {"arguments": "s.yaml", "the study file s.yaml": "ab12", "torch": "2.6"}


@pytest.mark.parametrize(("changed", "said"), [
    ({"arguments": "s.yaml seed=1"}, "arguments: s.yaml seed=1 on rank 2, s.yaml on rank 0"),
    ({"the study file s.yaml": "cd34"}, "the study file s.yaml: cd34 on rank 2, ab12 on rank 0"),
])  # fmt: skip
def test_rank_that_was_started_with_something_else_is_named(changed, said):
    require_same_start([SAME, SAME])
    require_same_start([SAME, {**SAME, "the study file s.yaml": None}])
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


@pytest.mark.parametrize(("what", "said"), [
    ("width", "rank 2 has built another model than rank 0: 0.weight is [4, 3] float32 on rank 2, [2, 3]"),
    ("seed", "rank 1 has built another model than rank 0: 0.weight has other initial values"),
])  # fmt: skip
def test_rank_with_another_model_is_named_on_every_rank(what, said):
    def rank(own):
        require_same_model(model_of(own.rank, ""), own)
        with pytest.raises(ExchangeError) as error:
            require_same_model(model_of(own.rank, what), own)
        return str(error.value)

    assert all(message.startswith(said) for message in run_in_process(3, rank))
