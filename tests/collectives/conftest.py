"""The verifications of the catalogue, each made once for all tests; ranks that take turns as a seed says."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch

from scaling.collectives.execute_host import HostExecution
from scaling.collectives.execute_peer import PeerExecution
from scaling.collectives.listing import schedule
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.collectives.verify import Verification, verify
from scaling.errors import ScheduleError
from scaling.process_group import InProcessGroup, run_in_process
from scaling.process_group.in_process import _World

MAX_TURNS = 100_000
CPU = torch.device("cpu")


def add(source: int, target: int, start: int = 0, stop: int = 1) -> Transfer:
    return Transfer(source, target, start, stop, "add")


def copy(source: int, target: int, start: int = 0, stop: int = 1) -> Transfer:
    return Transfer(source, target, start, stop, "copy")


def made_of(*steps: ScheduleStep, world_size: int = 2, num_chunks: int = 1, **fields: Any) -> Schedule:
    return Schedule("made", world_size, num_chunks, steps, **fields)


def run_on_tensors(schedule: Schedule, contributions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds in the end, transfer by transfer: the other executors must equal it bit for bit.

    ScheduleError: the schedule is for another number of ranks, or for tensors of other sizes."""
    if len(contributions) != schedule.world_size:
        raise ScheduleError(
            f"{schedule.name}: {len(contributions)} contributions for {schedule.world_size} ranks"
        )
    nodes = [tensor.clone() for tensor in contributions]
    nodes += [torch.zeros_like(nodes[0]) for _ in range(schedule.num_hosts)]
    bounds = schedule.bounds(nodes[0].numel())
    for step in schedule.steps:
        # All reads come before all writes (rule 1).
        spans = [slice(bounds[t.start], bounds[t.stop]) for t in step]
        values = [nodes[t.source][span].clone() for t, span in zip(step, spans, strict=True)]
        for transfer, span, value in zip(step, spans, values, strict=True):
            place = nodes[transfer.target][span]
            if transfer.operation == "add":
                place.add_(value)
            else:
                place.copy_(value)
    return nodes[: schedule.world_size]


def by_peer_memory(group, plan, num_elements, dtype, num_lanes=None):
    memory = group.peer_memory(num_elements, dtype, CPU)
    execution = PeerExecution(plan, group, memory, num_lanes)

    def run(values):
        memory.local.copy_(values)  # while others may be in the run before
        execution.run()
        return memory.local.clone()

    return run


def by_host_memory(group, plan, num_elements, dtype, **how):
    execution = HostExecution(plan, group, num_elements, dtype, CPU, **{"num_summing": 1, **how})
    phase = {"phase": group.phase} if hasattr(group, "phase") else {}

    def run(values):
        result = torch.full((num_elements,), 77, dtype=dtype)
        execution.run(values, result, **phase)
        return result

    return run


def results_of(executor, plan, rounds, runner=run_in_process, **how):
    """[rank][round] results of one execution, whose buffers are reused; runner(world_size, work)."""

    def work(group):
        run = executor(group, plan, rounds[0][0].numel(), rounds[0][0].dtype, **how)
        return [run(one[group.rank]) for one in rounds]

    return runner(len(rounds[0]), work)


def assert_reference(executor, plan, rounds, **how):
    expected = [run_on_tensors(plan, one) for one in rounds]
    for rank, results in enumerate(results_of(executor, plan, rounds, **how)):
        for index, result in enumerate(results):
            assert torch.equal(result, expected[index][rank]), (rank, f"round {index}")


@pytest.fixture(scope="session")
def verified() -> Callable[[str, int], Verification]:
    """verified(name, world_size); fails the test, naming both, where the sum is not delivered."""

    @cache
    def run(name: str, world_size: int) -> Verification:
        try:
            return verify(schedule(name, world_size))
        except ScheduleError as error:
            pytest.fail(f"{name} with {world_size} ranks: {error}")

    return run


def values_of(
    world_size: int, num_elements: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """One tensor a rank, of that seed."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return list(torch.randint(-1000, 1000, (world_size, num_elements), generator=generator))
    return list(torch.randn((world_size, num_elements), generator=generator).to(dtype))


class Turns:
    """Threads of which one runs at a time; who is next is drawn, so a seed decides on every order."""

    def __init__(self, world_size: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._running = list(range(world_size))
        self._current = self._random.choice(self._running)
        self._changed = threading.Condition()
        self._num_turns = 0
        self.failures: list[BaseException] = []

    def wait_for(self, rank: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._current == rank or self.failures)
        if self.failures:
            raise threading.BrokenBarrierError

    def hand_over(self, rank: int) -> None:
        self._draw()
        self.wait_for(rank)

    def leave(self, rank: int, failure: BaseException | None = None) -> None:
        self._running.remove(rank)
        self.failures += [failure] if failure else []
        self._draw()

    def _draw(self) -> None:
        self._num_turns += 1
        assert self._num_turns < MAX_TURNS, "no rank gets on: each waits for another"
        with self._changed:
            self._current = self._random.choice(self._running) if self._running else -1
            self._changed.notify_all()


class DrawnGroup(InProcessGroup):
    """Hands over to a drawn rank wherever a rank may have to wait, needed or not."""

    def __init__(self, rank: int, world_size: int, world: _World, turns: Turns) -> None:
        super().__init__(rank, world_size, world)
        self._turns = turns
        self._arrivals: list[int] = vars(world).setdefault("arrivals", [0] * world_size)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        self._turns.hand_over(self.rank)
        while not condition():
            self._turns.hand_over(self.rank)

    def barrier(self) -> None:
        self._arrivals[self.rank] += 1
        mine = self._arrivals[self.rank]
        self.wait_until(lambda: min(self._arrivals) >= mine)

    @contextmanager
    def phase(self, _: str) -> Iterator[None]:
        """A phase marker that hands over before and behind what it marks."""
        self._turns.hand_over(self.rank)
        yield
        self._turns.hand_over(self.rank)


@pytest.fixture
def run_interleaved() -> Callable[[int, Callable[[DrawnGroup], Any], int], list[Any]]:
    """run_interleaved(world_size, work, seed): `work` on every rank; results in rank order."""

    def run_all(world_size: int, work: Callable[[DrawnGroup], Any], seed: int) -> list[Any]:
        world, turns = _World(world_size, timeout_s=60), Turns(world_size, seed)
        results: list[Any] = [None] * world_size

        def run(rank: int) -> None:
            try:
                turns.wait_for(rank)
                results[rank] = work(DrawnGroup(rank, world_size, world, turns))
                turns.leave(rank)
            except BaseException as error:
                turns.leave(rank, error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if turns.failures:
            raise turns.failures[0]
        return results

    return run_all
