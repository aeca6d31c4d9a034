"""The verifications of the catalogue, each made once for all tests."""

from collections.abc import Callable
from functools import cache

import pytest

from scaling.collectives.catalogue import schedule
from scaling.collectives.verify import Verification, verify
from scaling.errors import ScheduleError


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
