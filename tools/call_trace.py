"""How often the way from a study's text to its cells changes from one file to another.

    python tools/call_trace.py            # of the shipped study mnist
    python tools/call_trace.py quickstart

Each call of a function of scaling/study and each return to one is an event (`sys.setprofile`); a move is an
event in another file than the one before. The study is read and resolved once before, so that imports do not
count, and as on a machine of two cores without GPUs.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from scaling.study.cell import AvailableMachine, ResolvedStudy
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve

STUDY = f"{Path(__file__).parents[1] / 'scaling' / 'study'}/"
MACHINE = AvailableMachine(num_gpus=0, num_cores=2)


def resolved(name: str) -> ResolvedStudy:
    """A study's cells, from its text on."""
    return resolve(load_study(name, []), MACHINE)


def trace(name: str) -> Counter[str]:
    """File below scaling/study -> how often the study's way comes to it from another one."""
    resolved(name)
    moves: Counter[str] = Counter()
    last = ""

    def heard(frame: FrameType | None, event: str, _: Any) -> None:
        nonlocal last
        if event == "return" and frame is not None:
            frame = frame.f_back
        elif event != "call":
            return
        file = frame.f_code.co_filename if frame is not None else ""
        if file.startswith(STUDY):
            moves[file.removeprefix(STUDY)] += bool(last) and file != last
            last = file

    sys.setprofile(heard)
    try:
        resolved(name)
    finally:
        sys.setprofile(None)
    return moves


def main() -> None:
    """Prints the moves, file by file, and their sum."""
    moves = trace(sys.argv[1] if len(sys.argv) > 1 else "mnist")
    for file, count in moves.most_common():
        print(f"{count:6} {file}")
    print(f"{moves.total()} moves between {len(moves)} files")


if __name__ == "__main__":
    main()
