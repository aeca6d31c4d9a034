"""Makes the first part of docs/how-to/questions.md: questions, a command each, and what it answers first.

python tools/questions_page.py            # asks the committed folders and writes the page
python tools/questions_page.py --check    # exit code 1 if the page is stale
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from scaling.cli import app

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "questions.md"
BEGIN, END = "<!-- Made by tools/questions_page.py; do not edit. -->\n", "<!-- End of what is made. -->\n"
FOLDER = "results/reference/"
QUESTIONS = {
    "Why are 4 GPUs slower than 1?": "explain {}fcn-r-4xh200 host_serial@4",
    "Which bucket size?": "recommend {}buckets-2xh200",
    "DDP, ZeRO or FSDP?": "recommend {}sharded-2xh100 --objective memory",
    "Does compression pay?": "recommend {}one-bit-step-4xh200",
    "Which batch and rate on 8 GPUs?": "recommend {}learning-cifar-2xh200 --objective time-to-target "
    "--topology hgx-h200 --world-sizes 8",
    "Is the new machine, or driver, slower?": "compare {}fcn-r-4xh200 {}mnist-4xh200",
    "What would 8 GPUs give?": "predict {}fcn-r-4xh200/study.yaml aggregators=[all_reduce] peer_access=true "
    "--topology hgx-h200 --world-sizes 8 --from {}fcn-r-4xh200",
    "PCIe or NVLink?": "explain {}fcn-r-4xh200 all_reduce@4",
    "Is a rank or a node slow?": "explain {}planted-faults-4xh200 slow_rank@4",
    "What is the cheapest way to an accuracy?": "recommend {}learning-cifar-2xh200 "
    "--objective gpu-hours-to-target",
}
"""Question -> command, {} for the folder of committed results."""

GOES_ON = re.compile(r" {2,}\S")


def answer_of(words: list[str]) -> list[str]:
    """The first two lines that a command prints, to the end of a sentence."""
    ended = CliRunner().invoke(app, words)
    if ended.exit_code or not ended.stdout.strip():
        raise SystemExit(f"scaling {shlex.join(words)} gave no answer: {ended.exception or ended.stderr}")
    *shown, last, after = ended.stdout.splitlines()[:3]
    if GOES_ON.match(after):
        last = last[: f"{last} ".rfind(". ") + 1]
    if not last:
        raise SystemExit(f"scaling {shlex.join(words)}: the first sentence takes more than two lines")
    return [*shown, last]


def made() -> str:
    """The questions and answers as Markdown."""
    parts = []
    for question, command in QUESTIONS.items():
        words = shlex.split(command.replace("{}", FOLDER))
        parts += [
            f"**{question}**\n",
            "```console",
            f"$ scaling {shlex.join(words)}",
            *answer_of(words),
            "```\n",
        ]
    return "\n".join(parts)


def page(text: str) -> str:
    """The page with this part made anew."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{made()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Writes the page, or compares it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    os.chdir(ROOT)
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if check:
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
