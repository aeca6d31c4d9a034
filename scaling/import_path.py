"""Where `python -m` imports from: what is installed comes before files of the working folder."""

import os
import sys

VARIABLE = "PYTHONSAFEPATH"
OURS = "scaling"
"""Its value where `scaling run` set it. From Python 3.11 on the working folder is not on the path then."""


def safe_path() -> dict[str, str]:
    """The variable for workers that a launcher starts by `python -m`; the user's own one stays."""
    return {} if os.environ.get(VARIABLE) or _is_checkout() else {VARIABLE: OURS}


def working_folder_last() -> None:
    """A numpy.py in the working folder is not numpy then. A checkout of this project stays first."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed: nothing is imported from there
        return
    if os.environ.get(VARIABLE) == OURS:
        del os.environ[VARIABLE]  # what the workers start is the user's
        is_first = sys.path[:1] in ([""], [here])
        sys.path.append(sys.path.pop(0) if is_first else here)
    elif sys.path[:1] in ([""], [here]) and not _is_checkout():
        sys.path.append(sys.path.pop(0))


def working_folder_found() -> None:
    """Has `scaling` find the working folder's modules as `python -m` does, unless the user wants none."""
    wanted = not (os.environ.get(VARIABLE) or getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    if wanted and not {"", here := os.getcwd()} & set(sys.path):
        sys.path.append(here)


def _is_checkout() -> bool:
    return os.path.isfile("scaling/import_path.py")
