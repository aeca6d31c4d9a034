"""How a test waits for a process, a file or a thread: until it has happened. Only a hang meets the limit."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 540.0
"""No wait is given up sooner. Programs that are started to hang do so for longer: 600 s."""

POLL_S = 0.02


def wait_until(condition: Callable[[], T], what: object = "in vain") -> T:
    """Waits for a true value, and returns it."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {LIMIT_S:g} s for {what}")
        time.sleep(POLL_S)
    return value
