"""How often are "better" and "worse" over seeds false, and how often is a loss found?

    python benchmarks/seed_quality.py --out FOLDER
    python benchmarks/seed_quality.py --table FOLDER

Studies are synthetic: normal scores of exact combinations, of standard deviation 1, and of lossy ones.
"Before" is the former rule: every combination against the exact one with the most seeds, of these the largest
spread, by the prediction interval of its seeds, without correction. `seeds.csv` in FOLDER has a row for each
kind of study.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd

from scaling.analysis.seed_decisions import BETTER, WITHIN, WORSE, Combination, bound, decide

FILE, SEED, STUDIES = "seeds.csv", 4602, 4000
LOSS = 3.0
"""Standard deviations of an exact combination's score over seeds, by which one lossy combination is worse."""

RULES = ("before", "after")
CASES: dict[str, Callable[[int], tuple[list[float], float]]] = {
    "false, equal scatter": lambda num_lossy: ([1.0] * num_lossy, 0.0),
    "false, one scatters twice as much": lambda num_lossy: ([2.0] + [1.0] * (num_lossy - 1), 0.0),
    "false, all scatter twice as much": lambda num_lossy: ([2.0] * num_lossy, 0.0),
    "false, one scatters three times as much": lambda num_lossy: ([3.0] + [1.0] * (num_lossy - 1), 0.0),
    "loss of 3 sd found": lambda num_lossy: ([1.0] * num_lossy, -LOSS),
}
"""Name -> the lossy combinations' standard deviations, and the difference of the first one's mean."""


@dataclass(frozen=True)
class Study:
    """A kind of study.

    Attributes:
        num_exact, num_lossy: combinations.
        lossy_seeds: of each lossy combination.
        exact_seeds: of each exact one but the first, which has three.
        correlation: of exact combinations at equal seed.
    """

    num_exact: int
    num_lossy: int
    lossy_seeds: int = 3
    exact_seeds: int = 3
    correlation: float = 0.0

    def draw(
        self, scatters: Sequence[float], shift: float, generator: np.random.Generator
    ) -> list[Combination]:
        """The exact combinations, then the lossy ones."""
        shared = math.sqrt(self.correlation) * generator.normal(size=3)
        own = math.sqrt(1 - self.correlation) * generator.normal(size=(self.num_exact, 3))
        lossy = np.array(scatters)[:, None] * generator.normal(size=(self.num_lossy, self.lossy_seeds))
        lossy[0] += shift
        return [
            *(
                Combination(dict(enumerate(scores[: self.exact_seeds if place else 3])), False, 2)
                for place, scores in enumerate((shared + own).tolist())
            ),
            *(Combination(dict(enumerate(scores)), True, 2) for scores in lossy.tolist()),
        ]


KINDS = (
    *(Study(*numbers) for numbers in ((1, 1), (2, 1), (2, 3), (3, 2), (4, 1), (4, 3))),
    *(Study(3, 2, correlation=correlation) for correlation in (0.5, 1.0)),
    *(Study(*numbers, lossy_seeds=1) for numbers in ((1, 1), (4, 3))),
    Study(4, 3, lossy_seeds=1, exact_seeds=1),
)


def before(trained: Sequence[Combination]) -> list[str]:
    """Verdicts by the former rule."""
    exact = [one for one in trained if not one.is_lossy]
    reference = max(exact, key=lambda one: (len(one.scores), one.squares))
    num_seeds, spread = len(reference.scores), math.sqrt(reference.squares / reference.degrees)
    verdicts = []
    for one in trained:
        error = spread * math.sqrt(1 / num_seeds + 1 / len(one.scores))
        difference = one.mean - reference.mean
        is_within = one is reference or abs(difference) <= bound(error, reference.degrees, 0.025)
        verdicts.append(WITHIN if is_within else WORSE if difference < 0 else BETTER)
    return verdicts


def after(trained: Sequence[Combination]) -> list[str]:
    """Verdicts by `scaling.analysis.seed_decisions`."""
    decided = decide(trained)
    assert decided is not None
    return [WITHIN if decision is None else decision.verdict for decision in decided[1]]


def rates(study: Study, num_studies: int, generator: np.random.Generator) -> dict[str, float]:
    """`CASE, RULE` -> the share of studies; both rules see the same ones."""
    found: dict[str, float] = {}
    for case, parameters in CASES.items():
        hits = dict.fromkeys(RULES, 0)
        scatters, shift = parameters(study.num_lossy)
        for _ in range(num_studies):
            trained = study.draw(scatters, shift, generator)
            for rule, verdicts in (("before", before(trained)), ("after", after(trained))):
                lossy = verdicts[study.num_exact]
                hits[rule] += lossy == WORSE if shift else any(verdict != WITHIN for verdict in verdicts)
        found |= {f"{case}, {rule}": hits[rule] / num_studies for rule in RULES}
    return found


def table(results: pd.DataFrame) -> Iterator[str]:
    """Lines of Markdown: percent of studies, before -> after."""
    yield "| exact + lossy | seeds of exact | of lossy | correlation | " + " | ".join(CASES) + " |"
    yield "|" + "---|" * (4 + len(CASES))
    for _, row in results.iterrows():
        shares = [" -> ".join(f"{100 * row[f'{case}, {rule}']:.1f}" for rule in RULES) for case in CASES]
        exact = "3" if row.exact_seeds == 3 else f"3, others {row.exact_seeds:.0f}"
        numbers = f"{row.num_exact:.0f} + {row.num_lossy:.0f}", exact, f"{row.lossy_seeds:.0f}"
        first = (*numbers, f"{row.correlation:g}")
        yield "| " + " | ".join((*first, *shares)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--studies", type=int, default=STUDIES)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    if arguments.out is not None:
        generator = np.random.default_rng(arguments.seed)
        names = [field.name for field in fields(Study)]
        rows = [
            {**dict(zip(names, astuple(study), strict=True)), **rates(study, arguments.studies, generator)}
            for study in KINDS
        ]
        arguments.out.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(arguments.out / FILE, index=False)
    if arguments.table is not None:
        print("\n".join(table(pd.read_csv(arguments.table / FILE))))


if __name__ == "__main__":
    main()
