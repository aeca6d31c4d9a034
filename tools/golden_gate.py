"""Whether the reports of the committed results are the same, byte for byte, at two commits.

For a change that must not change a result. Both commits are unpacked into a temporary folder, and each makes
the reports of its own results/reference with `scaling report`, under the same relative paths. All CSV, SVG
and HTML files that they write are compared. PNG files are not made: they show what the SVG files say.

    python tools/golden_gate.py main HEAD
    python tools/golden_gate.py v1.2 HEAD --only mnist-4xh200 --csv

Prints one line for each file that differs and exits with 1; exits with 0 where none does. Both sides run at
the same time, a process each, with this interpreter and its libraries. Only committed work is compared.
"""

from __future__ import annotations

import argparse
import csv
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = Path("results", "reference")
SUFFIXES = (".csv", ".svg", ".html")
SHOWN_CHARACTERS = 60


def main() -> int:
    """Makes both sides' reports and compares them; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="a commit, tag or branch")
    parser.add_argument("after", help="another one")
    parser.add_argument("--only", action="append", help="this folder alone; may be given several times")
    parser.add_argument(
        "--csv", action="store_true", help="leave out figures and pages: compare tables alone"
    )
    arguments = parser.parse_args()
    suffixes = (".csv",) if arguments.csv else SUFFIXES
    with tempfile.TemporaryDirectory(prefix="golden-gate-") as folder:
        sides = [Path(folder, name) for name in ("before", "after")]
        for side, commit in zip(sides, (arguments.before, arguments.after), strict=True):
            unpack(commit, side)
        names = sorted(
            {path.name for side in sides for path in (side / REFERENCE).iterdir() if path.is_dir()}
        )
        if arguments.only:
            unknown = [name for name in arguments.only if name not in names]
            if unknown:
                parser.error(f"{', '.join(unknown)}: not in results/reference; there are {', '.join(names)}")
            names = [name for name in names if name in arguments.only]
        failures = make_reports(sides, names, suffixes)
        before, after = sides
        lines = [*failures, *differences(before, after, names, suffixes)]
    for line in lines:
        print(line)
    print(f"{len(names)} folders, {len(lines)} differences" if lines else f"{len(names)} folders: the same")
    return 1 if lines else 0


def unpack(commit: str, folder: Path) -> None:
    """Puts the tree of a commit into a new folder, without the files that a report makes."""
    folder.mkdir()
    archive = folder / "tree.tar"
    subprocess.run(["git", "-C", ROOT, "archive", "--output", archive, commit], check=True)
    shutil.unpack_archive(archive, folder)
    archive.unlink()
    for study in (folder / REFERENCE).iterdir():
        for path in study.glob("*"):
            if path.suffix in SUFFIXES:
                path.unlink()
        shutil.rmtree(study / "figures", ignore_errors=True)


def make_reports(sides: Sequence[Path], names: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """Starts one process a side at a time; returns a line for each that fails."""
    code = f"import golden_gate; golden_gate.report_all({names!r}, {tuple(suffixes)!r})"
    processes = []  # what they print is progress: standard output is for the differences
    for side in sides:
        path = os.pathsep.join([str(side), str(Path(__file__).parent)])
        environment = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "agg", "PYTHONDONTWRITEBYTECODE": "1"}
        processes.append(
            subprocess.Popen([sys.executable, "-c", code], cwd=side, env=environment, stdout=sys.stderr)
        )
    codes = [process.wait() for process in processes]
    return [
        f"{side.name}: reports ended with exit code {code}"
        for side, code in zip(sides, codes, strict=True)
        if code
    ]


def report_all(names: Iterable[str], suffixes: Sequence[str]) -> None:
    """In a side's own process and folder: `scaling report` of each of its results."""
    leave_out_pictures(suffixes)
    failed = []
    for name in names:
        sys.argv = ["scaling", "report", str(REFERENCE / name)]
        try:
            runpy.run_module("scaling", run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            if stop.code:
                failed.append(name)
    if failed:
        sys.exit(f"no report of {', '.join(failed)}")


def leave_out_pictures(suffixes: Sequence[str]) -> None:
    """Makes matplotlib draw no PNG, and no SVG where none is compared: most of a report's time."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def saved(figure: Figure, file: Any, *, format: str, **options: Any) -> None:
        if format == "svg" and ".svg" in suffixes:
            save(figure, file, format=format, **options)
        elif format == "svg":
            file.write("<svg/>")

    Figure.savefig = saved  # type: ignore[method-assign,assignment]


def differences(before: Path, after: Path, names: Iterable[str], suffixes: Sequence[str]) -> list[str]:
    """One line for each file of the studies that only one side has, or that differs."""
    lines = []
    for name in names:
        sides = [files_of(side / REFERENCE / name, suffixes) for side in (before, after)]
        for file in sorted(sides[0].keys() | sides[1].keys()):
            paths = [side.get(file) for side in sides]
            if paths[0] is None or paths[1] is None:
                lines.append(f"{name}/{file}: only {'before' if paths[1] is None else 'after'}")
            else:
                difference = first_difference(paths[0], paths[1])
                if difference:
                    lines.append(f"{name}/{file}: {difference}")
    return lines


def files_of(folder: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Relative name -> path of what a report wrote."""
    paths = [*folder.glob("*"), *folder.glob("figures/*")]
    return {str(path.relative_to(folder)): path for path in paths if path.suffix in suffixes}


def first_difference(before: Path, after: Path) -> str | None:
    """Where two files begin to differ, for people; None where they are the same."""
    contents = before.read_bytes(), after.read_bytes()
    if contents[0] == contents[1]:
        return None
    texts = [content.decode(errors="backslashreplace") for content in contents]
    if before.suffix == ".csv":
        difference = first_cell(*(list(csv.reader(text.splitlines())) for text in texts))
        if difference:
            return difference
    for number, pair in enumerate(zip_longest(*(text.split("\n") for text in texts)), 1):
        if pair[0] != pair[1]:
            return f"line {number}: {shown(*pair)}"
    return "bytes differ that are no text"


def first_cell(before: list[list[str]], after: list[list[str]]) -> str | None:
    """Names row (1 is the first below the header) and column; None where the cells are the same."""
    if before[:1] != after[:1]:
        heads = [(rows or [[]])[0] for rows in (before, after)]
        gone, new = ([name for name in names if name not in other] for names, other in (heads, heads[::-1]))
        only = ", ".join(gone) or "none", ", ".join(new) or "none"
        return f"columns: only before {only[0]}; only after {only[1]}; or their order"
    for number, pair in enumerate(zip_longest(before, after), 0):
        if pair[0] is None or pair[1] is None:
            return f"{len(before) - 1} rows before, {len(after) - 1} after"
        for column, *values in zip_longest(before[0], *pair):
            if values[0] != values[1]:
                return f"row {number}, column {column}: {shown(*values)}"
    return None


def shown(before: str | None, after: str | None) -> str:
    """Both texts from a little before where they part."""
    texts = before or "", after or ""
    same = next((at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(same - SHOWN_CHARACTERS // 3, 0)
    return " against ".join(repr(text[start : start + SHOWN_CHARACTERS]) for text in texts)


if __name__ == "__main__":
    sys.exit(main())
