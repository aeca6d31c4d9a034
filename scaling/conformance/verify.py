"""`scaling verify`: proves that schedules deliver the sum, and checks aggregators against the contract.

A name stands for a collective, whose schedule is proved at every world size asked for; for an aggregator,
which gets the whole of `scaling.conformance`; or for both. Ranks are threads of this process."""

from __future__ import annotations

import dataclasses
import difflib
import gc
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.queues import SimpleQueue
from typing import Any

from scaling import conformance
from scaling.aggregators.base import DTYPES, Aggregator
from scaling.aggregators.host import threads
from scaling.aggregators.registry import REGISTRY, create
from scaling.aggregators.schedule import Scheduled
from scaling.collectives.listing import COLLECTIVES
from scaling.collectives.schedule import Schedule
from scaling.collectives.schedule_file import is_file, read_schedule
from scaling.collectives.verify import SentSample, Verification, verify
from scaling.conformance.cases import spelled
from scaling.errors import ScheduleError, StudyError
from scaling.files.texts import folded
from scaling.registry import Registry, trust
from topologies.detect import num_usable_cores

SAMPLE_WORLD_SIZE = 8
OWN = Registry("aggregator or schedule", "", {})  # module:attribute only
ALLOWED = "a subclass of scaling.aggregators.Aggregator, or a function from a world size to a Schedule"
_OF_HOROVOD = "with compression: fp16 it rounds as fp16 does, so its sheet is that one: scaling verify fp16"
SHEET_OF_CODEC = {
    "mpi_one_bit": "its codec is that of one_bit, so its sheet is that one: scaling verify one_bit",
    "horovod": _OF_HOROVOD,
    "horovod_optimizer": _OF_HOROVOD,
    "power_sgd_hook": "its codec is that of power_sgd, so its sheet is that one: scaling verify power_sgd",
}
"""Where to find the fidelity sheet of a lossy aggregator that takes processes."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class SubjectResult:
    """How a collective, an aggregator or a user's schedule did; `failure` is what does not hold first."""

    name: str
    kind: str
    checked: list[str]
    failure: str | None
    sample: SentSample | None

    def line(self, width: int) -> str:
        start = f"{self.name:{width}}  {self.kind:10}  "
        if self.failure is not None:
            return folded(f"{start}FAILED  ", self.failure)
        return folded(f"{start}ok  ", "; ".join(self.checked))

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.failure is None}


@dataclass
class Examination:
    """How far it has come: `where` is the case being checked, `again` the command that shows a failure
    there."""

    name: str
    world_sizes: Sequence[int]
    say: Say
    num_examples: int = conformance.NUM_EXAMPLES
    seed: int = 0
    where: str = ""
    again: str = ""
    checked: list[str] = field(default_factory=list)
    sample: SentSample | None = None

    def at(self, where: str) -> None:
        self.where = where
        self.say(f"{self.name}: {where}")


@dataclass(frozen=True)
class Subject:
    name: str
    kind: str
    check: Callable[[Examination], None]


def subjects_of(name: str) -> list[Subject]:
    """Of `module:attribute` or a schedule's file, too. Raises StudyError: there is none."""
    if ":" in name:
        return [_own(name)]
    if is_file(name):
        return [Subject(name, "schedule", partial(_file, name))]
    subjects = [_collective(name)] if name in COLLECTIVES else []
    if name in REGISTRY.targets():
        subjects.append(Subject(name, "aggregator", partial(_aggregator, create(name))))
    if not subjects:
        known = sorted({*COLLECTIVES, *REGISTRY.targets()})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise StudyError(
            f"nothing to verify is called {name!r}{hint}; known: {', '.join(known)}; "
            f"a schedule's FILE.yaml; or, as module:attribute, {ALLOWED}"
        )
    return subjects


def all_subjects(world_sizes: Sequence[int]) -> list[Subject]:
    """Collectives, then aggregators; StudyError: no aggregator can be checked at these world sizes."""
    if not set(world_sizes) & set(conformance.WORLD_SIZES):
        allowed = spelled(conformance.WORLD_SIZES)
        raise StudyError(f"--all: aggregators are checked at {allowed}; name one in --world-sizes")
    registered = [Subject(name, "aggregator", partial(_registered, name)) for name in REGISTRY.targets()]
    return [*map(_collective, COLLECTIVES), *registered]


def _registered(name: str, examination: Examination) -> None:
    """Loaded when its turn comes: what another package offers may be broken."""
    try:
        _aggregator(create(name), examination)
    except StudyError as error:
        raise AssertionError(str(error)) from error


def examine(
    subject: Subject,
    world_sizes: Sequence[int],
    say: Say = lambda _: None,
    num_examples: int = conformance.NUM_EXAMPLES,
    seed: int = 0,
) -> SubjectResult:
    """Up to what fails first; `say` is called with what is being checked. The contract is checked at those of
    the ascending `world_sizes` that are in `conformance.WORLD_SIZES`. Raises StudyError: nothing to check."""
    examination = Examination(subject.name, world_sizes, say, num_examples, seed)
    failure = None
    try:
        with threads(1):  # ranks are threads already
            subject.check(examination)
    except StudyError:
        raise
    except Exception as error:  # noqa: BLE001 (of the user's code)
        texts = [examination.where, conformance.failure_text(error), examination.again]
        failure = ": ".join(filter(None, texts[:2])) + (f"; again: {texts[2]}" if texts[2] else "")
    return SubjectResult(subject.name, subject.kind, examination.checked, failure, examination.sample)


def examine_all(
    subjects: Sequence[Subject],
    world_sizes: Sequence[int],
    num_examples: int = conformance.NUM_EXAMPLES_OF_COMMANDS,
    seed: int = 0,
) -> Iterator[SubjectResult]:
    def examined(index: int) -> SubjectResult:
        return examine(subjects[index], world_sizes, num_examples=num_examples, seed=seed)

    processes = min(num_usable_cores(), len(subjects))
    if processes < 2 or sys.platform != "linux":
        yield from map(examined, range(len(subjects)))
        return
    by_name: dict[str, list[int]] = {}  # in one process: a collective and its aggregator share what they keep
    for index, subject in enumerate(subjects):
        by_name.setdefault(subject.name, []).append(index)
    # Forked, not started anew: a new process would import torch, and a subject cannot be pickled.
    context = multiprocessing.get_context("fork")
    own, cores = sorted(os.sched_getaffinity(0)), context.SimpleQueue()
    random.shuffle(own)  # others may do the same at the same time
    for number in range(processes):
        cores.put(own[number % len(own)])
    with context.Pool(processes, _take, (examined, cores)) as pool:
        parts, results = pool.imap(_examine_taken, by_name.values()), dict[int, SubjectResult]()
        for index in range(len(subjects)):
            while index not in results:
                results.update(next(parts))
            yield results.pop(index)


_taken: list[Callable[[int], SubjectResult]] = []


def _take(examined: Callable[[int], SubjectResult], cores: SimpleQueue[int]) -> None:
    """Keeps to a core: one rank computes at a time, and handing over to a thread on another takes longer."""
    _taken[:] = [examined]
    gc.freeze()  # what was imported is no garbage, and need not be looked at again and again
    with suppress(OSError):  # not everywhere allowed
        os.sched_setaffinity(0, {cores.get()})


def _examine_taken(indices: list[int]) -> dict[int, SubjectResult]:
    return {index: _taken[0](index) for index in indices}


def _collective(name: str) -> Subject:
    make = COLLECTIVES[name].schedule
    return Subject(name, "collective", lambda examination: _schedules(lambda n: verify(make(n)), examination))


def _file(name: str, examination: Examination) -> None:
    if not os.path.isfile(name):
        raise StudyError(f"{name}: there is no such file; `scaling schedule import --out FILE` writes one")
    schedule = read_schedule(name)[0]
    examination.world_sizes = [schedule.world_size]
    _schedules(lambda _: verify(schedule), examination)


def _schedules(
    proved: Callable[[int], Verification], examination: Examination, min_world_size: int = 1
) -> None:
    sizes = [size for size in examination.world_sizes if size >= min_world_size]
    if not sizes:
        return
    sample_size = SAMPLE_WORLD_SIZE if SAMPLE_WORLD_SIZE in sizes else sizes[-1]
    for size in sizes:
        examination.at(f"at {spelled([size])}")
        verification = proved(size)
        if size == sample_size:
            messages, ratio = max(verification.messages_per_rank), max(verification.sent_ratio_per_rank)
            examination.sample = SentSample(size, verification.num_steps, messages, float(ratio))
    examination.checked.append(f"schedule at {spelled(sizes)} ({examination.sample})")


def _aggregator(aggregator: Aggregator[Any], examination: Examination) -> None:
    if isinstance(aggregator, Scheduled):
        scheduled, layout = aggregator, conformance.layout_of(((3, 171), (513,), ()))
        check = partial(conformance.check_schedule, scheduled, layout=layout)
        _schedules(check, examination, aggregator.min_world_size)
    library = "torch" if aggregator.ddp_path() == "library_hook" else aggregator.library
    if library is not None:
        carried = f"not the contract: its messages are carried by {library}, which takes processes"
        sheet = SHEET_OF_CODEC.get(aggregator.name)
        examination.checked += [carried, *([sheet] if sheet else [])]
        return
    allowed = [size for size in conformance.WORLD_SIZES if size >= aggregator.min_world_size]
    sizes = [size for size in allowed if size in examination.world_sizes]
    if sizes:
        _contract(aggregator, sizes, examination)
        return
    unchecked = f"the contract, which is checked at {spelled(allowed)}"
    if not examination.checked:
        raise StudyError(f"{examination.name}: nothing but {unchecked}; name one of these in --world-sizes")
    examination.checked.append(f"not {unchecked}")


def _contract(aggregator: Aggregator[Any], sizes: Sequence[int], examination: Examination) -> None:
    num_examples, seed, has_residuals = examination.num_examples, examination.seed, False
    variants: list[tuple[Aggregator[Any], str]] = [(aggregator, "")]
    if isinstance(aggregator, Scheduled):  # over every way of the bytes that threads have
        variants = [
            (dataclasses.replace(aggregator, transport=transport), f" by {transport.replace('_', ' ')}")
            for transport in ("sends", "peer_memory")
        ]
    for variant, path in variants:
        for size in sizes:
            examination.at(f"at {spelled([size])}{path}")
            drawn = f"--world-sizes {size} --examples {num_examples} --seed {seed}"
            examination.again = f"scaling verify {examination.name} {drawn}"
            has_residuals |= conformance.check_drawn(variant, size, num_examples, seed)
    examination.again = ""
    examination.checked.append(
        f"contract at {spelled(sizes)} x {num_examples} drawn cases and the fixed ones (seed {seed})"
    )
    examination.checked += ["saved state", *(["residuals"] if has_residuals else [])]
    left_out = [str(dtype) for dtype in DTYPES if dtype not in aggregator.dtypes]
    examination.checked += [f"not {', '.join(left_out)}, which it does not take"] if left_out else []


def _own(name: str) -> Subject:
    try:
        trust([name])  # a person has named it, on the command line
        value = OWN.load(name)
        aggregator = create(name) if isinstance(value, type) and issubclass(value, Aggregator) else None
    except StudyError:
        raise
    except Exception as error:  # whatever a user's module raises when it is imported
        raise StudyError(f"{name}: {type(error).__name__}: {error}") from error
    if aggregator is not None:
        return Subject(name, "aggregator", partial(_aggregator, aggregator))
    if isinstance(value, type) or not callable(value):
        raise StudyError(f"{name} is {value!r}; allowed are {ALLOWED}")
    return Subject(name, "schedule", partial(_schedules, partial(_proved, name, value)))


def _proved(name: str, make: Callable[[int], object], world_size: int) -> Verification:
    schedule = make(world_size)
    if not isinstance(schedule, Schedule):
        raise StudyError(
            f"{name}({world_size}) gives {type(schedule).__name__} {schedule!r:.80}; allowed are {ALLOWED}"
        )
    if schedule.world_size != world_size:
        raise ScheduleError(f"{schedule.name}: made for {schedule.world_size} ranks, asked for {world_size}")
    return verify(schedule)
