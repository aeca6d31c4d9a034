"""What runs inside each process of the script. Loaded by file too: it imports no other package."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

INJECTED = "_scaling_attach_inside"  # its name where `inject/sitecustomize.py` has loaded it by file


@cache
def protect() -> Any:
    from .guard import Guard

    return Guard(json.loads(os.environ["SCALING_ATTACH"]))


@cache
def start() -> Any:
    from .agent import Agent
    from .changes import change
    from .marking import mark
    from .safety import watch_saves

    agent = Agent(json.loads(os.environ["SCALING_ATTACH"]))
    if agent.arm.at_start is not None:
        agent.arm.at_start()
    change(agent)
    mark(agent)
    watch_saves(agent, protect())
    return agent


@contextmanager
def attached(model: Any, optimizer: Any) -> Iterator[None]:
    """Marks the steps of a script that `scaling attach` does not reach by itself; else does nothing."""
    if os.environ.get("SCALING_ATTACH"):
        injected = sys.modules.get(INJECTED)
        (injected.start if injected else start)().take(model, optimizer)
    yield
