"""How a test waits for a process, a file or a thread: until it has happened. Only a hang meets the limit."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT_S = 540.0
"""No wait is given up sooner. Programs that are started to hang do so for longer: 600 s."""


def wait_until(condition: Callable[[], T], what: object = "in vain") -> T:
    """Waits for a true value, and returns it."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {LIMIT_S:g} s for {what}")
        time.sleep(0.02)
    return value


def still_there(find: Callable[[], list[Any]]) -> list[Any]:
    """What `find` still finds at last: processes that were killed take a moment to end."""
    with suppress(TimeoutError):
        wait_until(lambda: not find())
    return find()


def is_running(pid: int) -> bool:
    """As neither one that has ended nor one whose end nobody has asked for yet."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def left_of(pids: list[int]) -> list[int]:
    """Which of these still run at last."""
    return still_there(lambda: [pid for pid in pids if is_running(pid)])
