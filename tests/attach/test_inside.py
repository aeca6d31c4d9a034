"""The agent in this process, without a script."""

import gc
import importlib
import importlib.util
import io
import itertools
import json
import os
import re
import runpy
import sys
import threading
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.utils.checkpoint

from scaling.attach.inside import agent as inside
from scaling.attach.inside import changes, marking, plan, record, safety, settings
from scaling.attach.inside.arms import ARMS
from scaling.attach.launch import INJECT, _read
from tests.attach.made_marks import made_rank


class _Event:
    """One of a GPU's, at a time of its clock."""

    def __init__(self, ms):
        self.ms = ms

    def elapsed_time(self, other):
        return other.ms - self.ms


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Of a run of 1 + 5 steps."""
    monkeypatch.setattr(inside, "register_optimizer_step_post_hook", lambda hook: None)  # global, for good
    return inside.Agent({"out": str(tmp_path), "arm": "baseline", "warmup": 1, "steps": 5, "deadline_s": 1})


def test_steps_on_a_gpu_end_when_the_gpu_says_so(agent, monkeypatch):
    # The host has run ahead: it asked for three steps in 1 ms, which took the GPU 20 ms.
    agent.marks = {0: [5.0, 5.0005, 5.001]}
    agent.events = {0: [_Event(100.0), _Event(110.0), _Event(120.0)]}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert [[round(end_s, 6) for end_s in marks] for marks in record.times_s(agent)] == [[5.0, 5.01, 5.02]]


class _Wrapped(torch.nn.Module):
    """Has of DistributedDataParallel what is asked for."""

    process_group = None

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_a_model_that_is_wrapped_again_counts_once(agent, monkeypatch):
    monkeypatch.setattr(inside.dist, "get_world_size", lambda group=None: 1)
    monkeypatch.setattr(agent, "_watch_exit", lambda: None)
    student, teacher = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    for module in (student, teacher, student):
        agent.wraps(_Wrapped(module))
    assert [model.module for model in agent.models] == [teacher, student]


def test_an_optimizer_that_a_script_has_replaced_is_not_waited_for(agent, monkeypatch):
    stopped: list[bool] = []
    monkeypatch.setattr(agent, "stop", lambda: stopped.append(True))
    agent.is_armed = True
    of_heads, of_all, rare = (torch.optim.SGD([torch.ones(1)], lr=1.0) for _ in range(3))
    for optimizer in (rare, of_heads, of_heads, of_all, of_all, rare, *[of_all] * 4):
        agent.after_step(optimizer)
    assert (stopped, len(agent.marks)) == ([], 2)  # that of the heads is left out
    for optimizer in [rare, of_all] * 4:
        agent.after_step(optimizer)
    assert stopped
    assert sorted(map(len, agent.marks.values())) == [6, 10]


@pytest.mark.parametrize("has_own", [False, True])
def test_an_optimizer_of_copies_is_the_scripts_where_no_other_steps(agent, monkeypatch, has_own):
    stopped: list[bool] = []
    monkeypatch.setattr(agent, "stop", lambda: stopped.append(True))
    agent.is_armed, agent.warmup, weight = True, 2, torch.ones(1)
    agent.parameters = {id(weight)}
    own, of_copies = (torch.optim.SGD([tensor], lr=1.0) for tensor in (weight, weight.clone()))
    for optimizer in [own, *[of_copies] * 8] if has_own else [of_copies] * 8:
        agent.after_step(optimizer)
    assert stopped == ([] if has_own else [True])


@pytest.mark.parametrize("error", [None, ValueError("no such hook"), AssertionError()])
def test_an_error_before_the_first_step_is_said_and_not_its_consequence(agent, tmp_path, monkeypatch, error):
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    agent.is_armed, agent.pid = True, os.getpid()
    agent.at_exit()
    record = json.loads((tmp_path / "rank0.json").read_text())
    assert record.get("refused") == (None if error else "it ended before an optimizer's step")
    said = {ValueError: "ValueError: no such hook", AssertionError: "AssertionError"}
    assert record.get("raised", [0, None])[1] == said.get(type(error))


def test_what_is_saved_to_a_file_is_timed_and_to_memory_no_save(agent, tmp_path, monkeypatch):
    for holder, name in itertools.product((torch, torch.jit), ("save", "load")):  # as before after this
        monkeypatch.setattr(holder, name, getattr(holder, name))
    guard = SimpleNamespace(emptied=lambda path: path, latest=lambda path: path)
    safety.watch_saves(agent, guard)
    agent.is_armed = True
    for named in (False, True):
        buffer = io.BytesIO()
        if named:
            torch.save(obj={"step": 3}, f=buffer)
        else:
            torch.save({"step": 3}, buffer)
        buffer.seek(0)
        assert torch.load(buffer) == {"step": 3}
    assert agent.phases == []
    torch.save({"step": 0}, tmp_path / "last.pt")
    assert torch.load(tmp_path / "last.pt") == {"step": 0}
    assert [name for name, _, _ in agent.phases] == ["save"]
    with guard.watch((tmp_path / "opened.pt").open("wb")) as file:  # what is saved to it is a part of it
        torch.save({"step": 1}, file)
    assert torch.load(tmp_path / "opened.pt") == {"step": 1}
    assert [name for name, _, _ in agent.phases] == ["save", "save"]
    log = guard.watch((tmp_path / "log").open("w+b"))
    agent.done["update"] += 1
    log.close()  # one that stays open over steps is none
    numpy.save(guard.watch((tmp_path / "x.npy").open("wb")), numpy.ones(3))  # closed as it is forgotten
    assert (numpy.load(tmp_path / "x.npy").tolist(), len(agent.phases)) == ([1, 1, 1], 3)
    thread = threading.Thread(target=torch.save, args=({}, tmp_path / "background.pt"))
    agent.threads.add(threading.get_ident())
    thread.start()
    thread.join()
    assert (len(agent.phases), agent.facts["saves_in_thread"]) == (3, 1)


@pytest.mark.parametrize("arm", ["baseline", "no_exchange"])
def test_the_backward_passes_inside_one_are_part_of_it(agent, monkeypatch, arm):
    agent.arm, agent.is_armed = ARMS[arm], True
    backward = marking._counted(agent, "backward", torch.autograd.backward)
    monkeypatch.setattr(torch.autograd, "backward", backward)
    values = torch.ones(2, requires_grad=True)
    for _ in range(2):
        out = values
        for _ in range(3):
            out = torch.utils.checkpoint.checkpoint(torch.sin, out, use_reentrant=True)
        torch.autograd.backward(out.sum())
    assert (agent.done["backward"], len(agent.phases)) == (2, 2 * (arm == "no_exchange"))


class FullyShardedDataParallel(torch.nn.Module):
    """Has the name of torch's."""


@pytest.mark.parametrize(("wrapper", "said"), [
    (lambda: torch.nn.DataParallel(torch.nn.Linear(2, 2)),
     ".*DistributedDataParallel under torchrun is faster"),
    (FullyShardedDataParallel, ".*FSDP: its exchange cannot be left out; take a trace with torch.profiler"),
    (lambda: None, "None"),
])  # fmt: skip
def test_what_a_script_uses_in_place_of_ddp_is_said_with_what_to_take_instead(monkeypatch, wrapper, said):
    for module in [name for name in sys.modules if name.partition(".")[0] in ("horovod", "deepspeed")]:
        monkeypatch.delitem(sys.modules, module)  # of another test in this process
    gc.collect()
    model = wrapper()
    used = inside.what_it_uses(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
    assert re.fullmatch(said, str(used)), (model, used)


def test_a_module_that_was_looked_up_before_is_still_noticed(tmp_path, monkeypatch):
    monkeypatch.delenv("SCALING_ATTACH", raising=False)
    noticed: list[object] = []
    after = runpy.run_path(str(INJECT / "sitecustomize.py"))["_After"]({"looked_up": noticed.append})
    (tmp_path / "looked_up.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [after, *sys.meta_path])
    assert importlib.util.find_spec("looked_up") is not None
    assert importlib.util.find_spec("looked_up") is not None
    assert noticed == []
    module = importlib.import_module("looked_up")
    assert noticed == [module]
    importlib.reload(module)
    del sys.modules["looked_up"]
    assert noticed == [module]


def test_a_spared_file_whose_name_is_no_utf8_is_named(tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps({**made_rank(0, [0.1] * 6), "world_size": 1, "pid": 1}))
    (tmp_path / "kept-1").write_bytes(b"/mine/\xff.pt\n/mine/last.pt\n")
    run = _read("clock", tmp_path, 0, 6, 10.0)
    assert run.ranks[0]["kept"] == ["/mine/last.pt", "/mine/\N{REPLACEMENT CHARACTER}.pt"]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_is_no_part_of_an_optimizers_step(agent, monkeypatch, by_name):
    hooks, clock = [], iter((1.0, 5.0))
    monkeypatch.setattr(marking, "register_optimizer_step_pre_hook", hooks.append)
    monkeypatch.setattr(marking.time, "perf_counter", lambda: next(clock))
    agent.arm = ARMS["no_exchange"]
    marking._updates(agent)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    agent.is_armed = True
    given = ((optimizer,), {"closure": lambda: 7}) if by_name else ((optimizer, lambda: 7), {})
    arguments, options = hooks[0](optimizer, *given)
    assert agent.updates == {id(optimizer): 1.0}
    closure = options["closure"] if by_name else arguments[1]
    assert (closure(), agent.updates) == (7, {id(optimizer): 5.0})
    assert agent.facts["has_closure"]


def test_debugging_that_is_on_is_known_and_stays_off_in_its_arm(monkeypatch):
    for name in ("set_debug_level", "set_debug_level_from_env"):  # as before after this
        monkeypatch.setattr(torch.distributed, name, getattr(torch.distributed, name))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    assert settings.switched_on() == ""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    torch.distributed.set_debug_level(torch.distributed.DebugLevel.DETAIL)
    assert settings.switched_on() == "CUDA_LAUNCH_BLOCKING and TORCH_DISTRIBUTED_DEBUG=DETAIL"
    settings.switch_off()
    torch.distributed.set_debug_level(torch.distributed.DebugLevel.DETAIL)
    assert settings.switched_on() == ""


def test_anomaly_detection_is_off_in_its_arm_alone_and_else_as_the_script_wants(monkeypatch):
    is_on, arm = torch.is_anomaly_enabled, ARMS["no_anomaly"]
    for name in ("set_anomaly_enabled", "is_anomaly_enabled"):  # as before after this
        monkeypatch.setattr(torch, name, getattr(torch, name))
    settings.watch_anomalies()
    with torch.autograd.set_detect_anomaly(True):
        assert is_on()
        arm.on(None)
        with torch.autograd.detect_anomaly():
            assert (is_on(), settings.asks_for_anomalies()) == (False, True)
        arm.off(None)
        assert is_on()
    arm.on(None)
    arm.off(None)
    assert not is_on()


def test_rounds_go_on_until_an_epoch_has_ended(tmp_path):
    rounds = plan.Plan({"arms": ["baseline", "aa"], "out": str(tmp_path), "until_epoch": True})
    assert "stop" not in [rounds.next(made, 1, [0.0, 0.1], 0)[0] for made in range(1, 100)]
    rounds.waits_for_epoch = False
    assert "stop" in [rounds.next(made, 1, [0.0, 0.1], 0)[0] for made in range(100, 120)]


@pytest.mark.parametrize("is_plain", [False, True])
def test_launches_draw_other_samples(agent, monkeypatch, is_plain):
    sampler = changes.DistributedSampler
    monkeypatch.setattr(sampler, "__init__", sampler.__init__)  # as before after this
    monkeypatch.setattr(changes.RandomSampler, "__iter__", changes.RandomSampler.__iter__)
    changes._draw_other_samples(agent)
    drawn = []
    for agent.seed in (0, 1000, 0):
        torch.manual_seed(5)  # as scripts do
        loader = torch.utils.data.DataLoader(range(64), shuffle=True)
        drawn.append(list(loader.sampler if is_plain else sampler(range(64), num_replicas=2, rank=0)))
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_option_of_buffers_is_known_where_the_wrapper_is_replaced(agent, tmp_path, monkeypatch):
    monkeypatch.setattr(record.DistributedDataParallel, "__init__", lambda self, *_, **__: None)
    record.write(agent)
    options = ("broadcast_buffers", "forward_sync_buffers")
    assert json.loads((tmp_path / "rank0.json").read_text())["buffers_option"] in options


def test_where_nothing_trains_by_torch_a_step_ends_with_a_collective_after_a_batch(agent, monkeypatch):
    monkeypatch.setattr(agent, "_begin_without", lambda: True)
    marked: list[int] = []
    monkeypatch.setattr(agent, "_mark", lambda *_: marked.append(agent.done["input"]))
    for _ in range(9):
        agent.after_part("broadcast")  # of parameters, before the first batch
    for batch in range(1, 6):
        agent.done["input"] = batch
        for name in ("all_reduce", "all_reduce", "all_gather"):
            agent.after_part(name)
    assert (marked, agent.facts["steps_are"]) == ([4, 5], "all_reduce")


@pytest.mark.parametrize("has_backward", [False, True])
def test_gradients_by_grad_alone_are_backward_passes(agent, monkeypatch, has_backward):
    passes: list[int] = []
    monkeypatch.setattr(agent, "after_part", lambda _: passes.append(1))
    call = marking._counted(agent, "backward", torch.autograd.grad)
    grad = marking._stepping(agent, call, torch.autograd.grad, is_grad=True)
    backward = marking._stepping(agent, lambda _: None, None)
    weight = torch.ones(2, requires_grad=True)
    for _ in range(has_backward):
        backward(weight)
    for _ in range(3):
        assert grad(weight.square().sum(), weight)[0].tolist() == [2, 2]
    assert (len(passes), agent.done["backward"]) == ((1, 0) if has_backward else (3, 3))
