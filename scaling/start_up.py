"""What a program sees to as it starts: missing packages, closed streams. Standard library alone."""

from __future__ import annotations

import os
import resource
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PACKAGES = {"yaml": "pyyaml", "sklearn": "scikit-learn", "pynvml": "nvidia-ml-py"}  # where names differ


OWN = ("", "__main__", "scaling", "launchers", "topologies")  # no package that could be installed


def installed_by(error: ImportError | OSError) -> str | None:
    """What is missing or broken, and the command that installs it; None where no package failed to load."""
    is_missing = isinstance(error, ModuleNotFoundError)
    module = _named(error) if is_missing else _loaded_in_vain(error)
    if module in OWN:
        return None
    package = PACKAGES.get(module, module)
    if is_missing:
        command = shlex.join([sys.executable, "-m", "pip", "install", package])
        return f"{module} is needed, and this Python has no module of that name; `{command}` installs it"
    command = shlex.join([sys.executable, "-m", "pip", "install", "--force-reinstall", package])
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{module} is installed and cannot be loaded: {reason:.200}; `{command}` installs it anew"


def _loaded_in_vain(error: ImportError | OSError) -> str:
    """The package that our code imports where the error comes from there; empty where it does not."""
    imported, frame = "", error.__traceback__
    while frame is not None:
        package = str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in OWN:
            imported = ""
        elif not imported and frame.tb_frame.f_code.co_name == "<module>":
            imported = package
        frame = frame.tb_next
    return imported or _named(error)


def _named(error: ImportError | OSError) -> str:
    return str(getattr(error, "name", None) or "").partition(".")[0]


@contextmanager
def missing_named() -> Iterator[None]:
    """Ends this process with one message where what is imported within it is missing or broken."""
    try:
        yield
    except (ImportError, OSError) as error:
        if (problem := installed_by(error)) is None:
            raise
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


FEWEST_OPEN_FILES = 64  # with fewer, workers of a launch wait for what cannot be opened


def allow_open_files() -> str | None:
    """Lets this process have as many open files as it may; what is wrong where those are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEWEST_OPEN_FILES:
        return None
    if hard == resource.RLIM_INFINITY or hard >= FEWEST_OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEWEST_OPEN_FILES if hard < 0 else hard, hard))
        return None
    return f"at most {hard} files may be open (`ulimit -n`); at least {FEWEST_OPEN_FILES} are needed"


def open_standard_streams() -> None:
    """Opens /dev/null for those that are closed: the next file would get what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdout", "stderr"), start=1):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
