"""Python runs this at start where its folder is first on PYTHONPATH; after torch it loads the agent.

It imports nothing of this project, so the script's own packages are the ones that it finds without it.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "_scaling_attach_inside"


def _run_existing() -> None:
    """The environment's own sitecustomize, which this one hides."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _load_agent() -> None:
    place = os.path.join(os.path.dirname(HERE), "inside")
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(place, "__init__.py"), submodule_search_locations=[place]
    )
    assert spec is not None
    assert spec.loader is not None
    inside = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = inside
    spec.loader.exec_module(inside)
    inside.start()


class _TorchFinder:
    """Finds torch once, as everybody else does, and loads the agent after it."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_load(module):  # type: ignore[no-untyped-def]
                execute(module)
                _load_agent()

            spec.loader.exec_module = execute_and_load  # type: ignore[method-assign]
        return spec


_run_existing()
if os.environ.get("SCALING_ATTACH"):
    sys.meta_path.insert(0, _TorchFinder())
