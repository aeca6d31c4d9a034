"""Plants faults in the real command; rank, time and place are drawn by a seed, which is printed."""

import json
import os
import random
from pathlib import Path

import pytest

from tests.end_to_end.conftest import scaling

__all__ = ["scaling"]

SEED_VARIABLE = "SCALING_FAULT_SEED"
RESULTS_VARIABLE = "SCALING_FAULT_RESULTS"
"""A JSON file of what these tests have seen, for the table in docs/background/reliability.md."""

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def seed() -> int:
    """Of this session: SCALING_FAULT_SEED, or another one each time."""
    return int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(10**6))


@pytest.fixture(scope="module")
def draw(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """What is drawn; a failure shows how to draw it again."""
    print(f"{SEED_VARIABLE}={seed} draws the same again")
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def found(request: pytest.FixtureRequest):
    """found(said, lost): what the command said of the planted fault, and what was lost by it."""

    def write(said: str, lost: str = "nothing") -> None:
        if path := os.environ.get(RESULTS_VARIABLE):
            known = json.loads(Path(path).read_text()) if Path(path).exists() else {}
            known[request.node.originalname] = {"said": said, "lost": lost}
            Path(path).write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")

    return write
