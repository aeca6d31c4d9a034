"""Files and folders that are damaged at random, and what the commands say of them.

Each mutant is a valid folder, study or machine file with one damage: a value of another type or size, a key
that is missing or stands twice, bytes that are changed, half a file, no file, a folder or a link in its
place. The command that reads it runs in this process. It must end with a documented exit code after at most
MOST_CALLS calls, print no control character, and, where it refuses the file, say so in one message that names
it.

    python -m tests.faults.mutants --mutants 5000 --seed 7
    python -m tests.faults.mutants --mutants 100000 --seed 7 --minutes 60
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.counting import Calls, counted
from tests.faults.damages import MUTANT, damage
from tests.faults.valid_inputs import BASES, GROWTH, LARGE, REPORTS, TIMES, Base
from tests.waiting import LIMIT_S

MOST_CALLS = 15_000_000
"""Of any command on a file that this draws, or on numbers that are as large as is allowed."""

CODES = {
    **{"compare": {0, 2, 3}, "status": {0, 1, 2}, "recommend": {0, 2, 3}, "explain": {0, 2}},
    **{verb: {0, 2} for verb in ("export", "predict", "plan", "report", "topology", "schedule")},
}
"""Verb -> exit codes that docs/reference says it may end with."""


class HangsError(Exception):
    """A command did not come to its end."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, texts, calls, CPU seconds, and the traceback of no error of ours."""

    code: int | None
    out: str
    err: str
    num_calls: int
    cpu_s: float
    traceback: str = ""


def run(words: Sequence[object]) -> Ended:
    """Runs `scaling *words` in this process."""
    from scaling.cli import main

    out, err, code, found = io.StringIO(), io.StringIO(), 0, ""
    argv, sys.argv = sys.argv, ["scaling", *map(str, words)]
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(int(LIMIT_S))
    calls, began_s = Calls(), time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), counted(calls):
            main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        code, found = -1, traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.argv = argv
    return Ended(code, out.getvalue(), err.getvalue(), calls.number, time.process_time() - began_s, found)


def _hang(*_: object) -> None:
    raise HangsError(f"no end after {LIMIT_S:g} s")


def _names_a_study(message: str, folder: Path) -> bool:
    """Whether it begins with an override, or with a word that is the name in one of the folder's studies."""
    found = re.search(r"^error: (override |[\w.-]+: )", message, re.M)
    if found is None or found[1] == "override ":
        return found is not None
    name = re.compile(rf"name['\"]?: *['\"]?{re.escape(found[1][:-2])}\b")
    return any(name.search(path.read_text(errors="replace")) for path in folder.rglob("*.yaml"))


def complaint(words: Sequence[object], ended: Ended, folder: Path) -> str | None:
    """What is wrong with how a command ended; None where nothing is."""
    if ended.traceback:
        *_, last = ended.traceback.strip().splitlines()
        lines = ended.traceback.splitlines()
        ours = [line.strip() for line in lines if "/scaling/" in line or "/topologies/" in line]
        return f"{last[:150]} in {ours[-1] if ours else '?'}"
    if ended.num_calls > MOST_CALLS:
        return f"made {ended.num_calls} calls"
    if ended.code not in CODES[str(words[0])]:
        return f"exit code {ended.code}"
    shown = ended.out + ended.err
    if "Traceback" in shown:
        return "prints a traceback"
    if any((ord(one) < 32 and one not in "\n\t\r") or 127 <= ord(one) < 160 for one in shown):
        return "prints a control character"
    if ended.code == 2 and not (str(folder) in ended.err or _names_a_study(ended.err, folder)):
        return f"names no file: {ended.err.strip()[:150]}"
    if ended.code == 2 and ended.err.count("error: ") != 1:
        return f"says not one thing: {ended.err.strip()[:150]}"
    return None


@dataclass
class Tried:
    """What came of many mutants.

    Attributes:
        counts: (kind of input, whether it was refused) -> mutants.
        failures: complaint -> the first mutants of it: seed, base, damage and command.
        most_calls: of a command.
        most_cpu_s: of a command, and which that was.
    """

    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    failures: dict[str, list[str]] = field(default_factory=dict)
    most_calls: int = 0
    most_cpu_s: tuple[float, str] = (0.0, "")

    @property
    def num_mutants(self) -> int:
        return sum(self.counts.values())


def try_mutants(
    seed: object,
    number: int,
    place: Path,
    bases: Sequence[Base] = BASES,
    told: Callable[[str], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Tried:
    """Makes mutants and runs a command on each.

    Args:
        seed: mutant k is drawn by `seed` and k.
        number: of mutants.
        place: an empty folder.
        bases: taken in turn.
        told: gets each failure as it is found.
        is_over: whether no further one is begun.
    """
    tried = Tried()
    for base in bases:
        (place / base.name).mkdir(parents=True)
        base.fill(place / base.name)
    for k in range(number):
        if is_over():
            break
        base, draw = bases[k % len(bases)], random.Random(f"{seed}/{k}")
        folder = place / MUTANT
        shutil.copytree(place / base.name, folder, symlinks=True)
        name, done = damage(folder, draw)
        words = base.words(folder, name, draw)
        ended = run(words)
        tried.counts[base.name, ended.code == 2] += 1
        tried.most_calls = max(tried.most_calls, ended.num_calls)
        mutant = f"seed {seed}/{k}: {name}: {done}; {' '.join(map(str, words))}"
        tried.most_cpu_s = max(tried.most_cpu_s, (ended.cpu_s, mutant))
        problem = complaint(words, ended, folder)
        if problem is not None:
            tried.failures.setdefault(problem, []).append(mutant)
            if told is not None:
                told(f"{problem}\n    {mutant[:400]}")
        shutil.rmtree(folder, ignore_errors=True)
    return tried


SIZES = (1, TIMES // 2, TIMES)


def growth(place: Path) -> dict[str, list[int]]:
    """Command -> its calls on valid inputs of SIZES.

    The first command of each kind imports what it needs: its calls are not taken.
    """
    calls: dict[str, list[int]] = {}
    for kind, (fill, commands) in GROWTH.items():
        folders = [place / f"{kind} {times}" for times in SIZES]
        for folder, times in zip(folders, SIZES, strict=True):
            folder.mkdir(parents=True)
            fill(folder, times)
        for sizes in zip(*map(commands, folders), strict=True):
            ended = [run(words) for words in (sizes[0], *sizes)]
            assert len({one.code for one in ended}) == 1, ended
            calls[f"{kind}: {' '.join(map(str, sizes[0]))}"] = [one.num_calls for one in ended[1:]]
    return calls


def grows_faster_than_linearly(calls: Sequence[int]) -> bool:
    """Whether the second half of an input costs much more than the first: by squares three times as much."""
    first, half, whole = calls
    return whole - half > 2 * (half - first) + first / 20


def main() -> None:
    """Tries many, and tells each class of failure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="no further one is begun after that")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    end_s = time.monotonic() + 60 * options.minutes
    bases = [base for base in [*BASES, *LARGE, *REPORTS] if options.only in base.name]
    tell = functools.partial(print, flush=True)
    with tempfile.TemporaryDirectory() as place:
        drawn = (options.seed, options.mutants, Path(place), bases)
        tried = try_mutants(*drawn, tell, lambda: time.monotonic() > end_s)
    for problem, mutants in sorted(tried.failures.items(), key=lambda item: -len(item[1])):
        print(f"{len(mutants):4} {problem}\n       {mutants[0][:400]}")
    refused = sum(count for (_, is_refused), count in tried.counts.items() if is_refused)
    print(f"{tried.num_mutants} mutants, {refused} refused, at most {tried.most_calls} calls, "
          f"{tried.most_cpu_s[0]:.1f} CPU seconds ({tried.most_cpu_s[1][:200]}), "
          f"{sum(map(len, tried.failures.values()))} wrong in {len(tried.failures)} ways")  # fmt: skip
    counts = sorted(tried.counts.items())
    print(json.dumps({f"{name}{' refused' if refused else ''}": n for (name, refused), n in counts}))


if __name__ == "__main__":
    main()
