"""Where `python -m` imports from: what is installed comes before files of the working folder."""

import os
import sys


def working_folder_last() -> None:
    """A numpy.py in the working folder is not numpy then. A checkout of this project stays first."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed: nothing is imported from there
        return
    is_checkout = os.path.isfile("scaling/import_path.py")
    if sys.path[:1] in ([""], [here]) and not is_checkout:
        sys.path.append(sys.path.pop(0))
