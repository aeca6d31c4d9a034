"""What the agent sees of a script's loaders, and how it repeats a batch."""

import threading
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, dataloader

from scaling.attach.inside import agent as inside
from scaling.attach.inside import cached, marking
from scaling.attach.inside.arms import ARMS

Pair = namedtuple("Pair", ["inputs", "targets"])
Valued = namedtuple("Valued", ["values", "targets"])
PATCHED = (
    *((dataloader._BaseDataLoaderIter, name) for name in ("__init__", "__next__", "_reset")),
    (dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers"),
    (DataLoader, "__iter__"),
)


@pytest.fixture
def loaders(monkeypatch):
    """Loaders are as before after this."""
    for holder, name in PATCHED:
        monkeypatch.setattr(holder, name, getattr(holder, name))


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Of a run in which steps count."""
    monkeypatch.setattr(inside, "register_optimizer_step_post_hook", lambda hook: None)  # global, for good
    order = {"out": str(tmp_path), "arm": "no_exchange", "warmup": 1, "steps": 5, "deadline_s": 1}
    made = inside.Agent(order)
    made.is_armed = True
    made.threads.add(threading.get_ident())
    return made


class Drawn(torch.utils.data.Dataset):
    """Numbers; knows how often it was asked in this process."""

    def __init__(self, size):
        self.size, self.asked = size, 0

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        self.asked += 1
        return float(at)


class Stream(IterableDataset):
    """Six samples without a length."""

    def __iter__(self):
        return iter(range(6))


def test_batches_without_gradients_are_an_evaluations(agent, loaders):
    marking._batches(agent)
    agent.is_armed = True
    for batch_size in (2, 4):
        with torch.set_grad_enabled(batch_size == 2):
            list(torch.utils.data.DataLoader(torch.zeros(4), batch_size))
    assert (agent.batches, agent.done["input"]) == ([(2, 2), (2, 2)], 3)


@dataclass
class Fields:
    """A batch of a user's own."""

    values: Any
    targets: Any


@pytest.mark.parametrize(("batch", "sizes"), [
    (Valued(torch.zeros(4, 2), torch.zeros(4)), (4, 8)),
    (Fields(torch.zeros(4, 2), torch.zeros(4)), (4, 8)),
    (SimpleNamespace(values=[[1.0]]), (0, 0)),  # a DataFrame has them as no method
    (Fields, (0, 0)),
    (UserDict(a=[torch.zeros(()), torch.zeros(3)]), (3, 3)),
    (SimpleNamespace(values=lambda: 1 / 0), (0, 0)),
])  # fmt: skip
def test_a_batch_that_has_values_is_no_error(batch, sizes):
    assert marking._sizes(batch) == sizes


def test_what_another_thread_draws_ahead_is_no_input_of_a_step(agent, loaders):
    marking._batches(agent)
    thread = threading.Thread(target=lambda: list(DataLoader(Drawn(4), 2)))
    thread.start()
    thread.join()
    assert (agent.phases, agent.done["input"], agent.batches) == ([], 0, [(2, 2), (2, 2)])
    assert agent.facts["draws_in_thread"]
    list(DataLoader(Drawn(4), 2))
    assert (agent.done["input"], {name for name, *_ in agent.phases}) == (2, {"input"})


def test_workers_that_start_and_stop_in_each_step_are_input(agent, loaders, monkeypatch):
    now = [0]  # a made-up clock: to start a worker takes a second, to end one too

    def takes_a_second(call):
        def called(self, *arguments, **options):
            now[0] += 1
            return call(self, *arguments, **options)

        return called

    for name in ("start", "join"):
        monkeypatch.setattr(BaseProcess, name, takes_a_second(getattr(BaseProcess, name)))
    marking._batches(agent)
    loader = DataLoader(Drawn(8), 2, num_workers=1)
    monkeypatch.setattr(marking, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    for _ in range(3):
        next(iter(loader))
    assert (agent.facts["iterators"], agent.facts["loader_workers"]) == (3, 1)
    inside_s = {second for _, start_s, end_s in agent.phases for second in range(start_s, end_s)}
    assert inside_s == set(range(now[0])), "each second is of a worker's start or end"
    assert now[0] == 6


def test_a_loader_that_has_its_batch_starts_no_workers_and_epochs_keep_their_length(agent, loaders):
    agent.arm = ARMS["cached_input"]
    cached.cache_input(agent)
    marking._batches(agent)
    data = Drawn(8)
    loader = DataLoader(data, 2)
    assert [batch.tolist() for batch in loader] == [[0.0, 1.0]] * 4
    assert ([len(list(loader)) for _ in range(3)], data.asked) == ([4, 4, 4], 2)
    with_workers = DataLoader(data, 2, num_workers=1)
    next(iter(with_workers))
    again = iter(with_workers)
    assert not hasattr(again, "_workers")
    assert (next(again).tolist(), agent.facts["iterators"]) == ([0.0, 1.0], 6)
    loader = DataLoader(Drawn(8), 2, num_workers=1, persistent_workers=True)
    lengths = [len(list(loader)) for _ in range(2)]
    with torch.no_grad():
        evaluated = [batch.tolist() for batch in loader]
    assert (lengths, len(evaluated), evaluated[3]) == ([4, 4], 4, [6.0, 7.0])
    kept = loader._iterator
    kept._reset(loader)  # as torch does for an epoch with the same workers
    assert (kept._attach_drawn, len(list(loader))) == (0, 4)


def test_an_epoch_in_which_arms_change_keeps_its_length(agent, loaders):
    cached.cache_input(agent)
    loader, lengths = DataLoader(Drawn(8), 2), list[int]()
    next(iter(loader))
    for before, after in (("cached_input", "baseline"), ("baseline", "cached_input")):
        agent.arm = ARMS[before]
        epoch = iter(loader)
        next(epoch)
        agent.arm = ARMS[after]
        next(epoch)
        agent.arm = ARMS["baseline"]
        lengths.append(2 + len(list(epoch)))
    assert lengths == [4, 4]


def test_an_evaluation_loads_its_batches_and_ends(agent, loaders):
    agent.arm = ARMS["cached_input"]
    cached.cache_input(agent)
    trained = DataLoader(Stream(), 2)
    drawn = iter(trained)
    assert [next(drawn).tolist() for _ in range(5)] == [[0, 1]] * 5  # its epoch goes on
    with torch.no_grad():
        assert [batch.tolist() for batch in trained] == [[0, 1], [2, 3], [4, 5]]
    agent.evaluating_since = 1.0
    assert len(list(DataLoader(Stream(), 2))) == 3


def test_drawing_from_another_loader_without_gradients_is_an_evaluation(agent, loaders):
    marking._batches(agent)
    train, held_out = DataLoader(Drawn(8), 2), DataLoader(Drawn(6), 2)
    steps = iter(train)
    next(steps)
    with torch.no_grad():
        next(steps)  # of the same loader: input
        list(held_out)
    next(steps)
    assert [name for name, _, _ in agent.phases if name == "evaluation"] == ["evaluation"]
    assert (agent.done["evaluation"], agent.evaluating_since) == (1, None)
    assert (agent.facts["unshared_samples"], len(agent.batches)) == (8, 2)


@pytest.mark.parametrize("made", [dict, OrderedDict, UserDict, lambda items: defaultdict(list, items),
                                  lambda items: Fields(*(value for _, value in items)),
                                  lambda items: Pair(*(value for _, value in items)),
                                  lambda items: [value for _, value in items],
                                  lambda items: tuple(value for _, value in items)])  # fmt: skip
def test_a_cached_batch_is_a_copy_of_its_tensors_whatever_holds_them(made):
    batch = made([("inputs", torch.zeros(2)), ("targets", [torch.zeros(2)])])
    copied = cached.mapped(batch, cached.copied)
    assert type(copied) is type(batch)
    inputs, targets = _values(copied)
    inputs += 1
    targets[0] += 1
    first, second = _values(batch)
    assert (first.sum(), second[0].sum()) == (0, 0)


def _values(batch):
    if isinstance(batch, Fields):
        return [batch.values, batch.targets]
    return list(batch.values() if isinstance(batch, (dict, UserDict)) else batch)


def test_a_batch_is_given_again_without_a_copy_until_it_is_changed_or_as_it_is_if_none_is_possible():
    given = cached.Repeats([torch.zeros(3), torch.utils.data.TensorDataset(torch.ones(1))])
    first = [given.give()[0] for _ in range(cached.COPIES)]
    assert len({batch.data_ptr() for batch in first}) == cached.COPIES  # in use at the same time
    first[0].requires_grad_()
    again = given.give()[0]
    assert again.data_ptr() == first[0].data_ptr()
    assert not again.requires_grad
    first[1][:1].add_(1)
    changed = given.give()[0]
    assert changed.tolist() == [0.0, 0.0, 0.0]
    changed.unsqueeze_(0).mul_(torch.ones(3, requires_grad=True))
    for _ in range(cached.COPIES):
        assert given.give()[0].tolist() == [0.0, 0.0, 0.0]
    assert not given.give()[0].requires_grad

    class Own(tuple):
        def __new__(cls, first, second):
            return super().__new__(cls, (first, second))

    own = Own(torch.zeros(1), 2)
    assert cached.Repeats(own).give() is own
