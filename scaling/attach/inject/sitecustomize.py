"""Python runs this at start. It imports nothing of this project, so the script finds its own packages."""

import _thread
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "_scaling_attach_inside"


def _run_existing() -> None:
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _After:
    """Finds modules as everybody else does, and makes a call with each after it is first loaded."""

    def __init__(self, calls: dict[str, Any]) -> None:
        self.calls = calls
        self._finding: set[tuple[str, int]] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        asked = name, _thread.get_ident()  # another thread may look it up at the same time
        if name not in self.calls or asked in self._finding:
            return None
        self._finding.add(asked)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(asked)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: Any) -> None:
                execute(module)
                if (call := self.calls.pop(name, None)) is not None:  # to look it up is not to load it
                    call(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def _begin() -> None:
    place = os.path.join(os.path.dirname(HERE), "inside", "__init__.py")
    spec = importlib.util.spec_from_file_location(NAME, place)
    assert spec is not None
    assert spec.loader is not None
    inside = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = inside
    spec.loader.exec_module(inside)
    guard, libraries = inside.protect(), importlib.import_module(f"{NAME}.libraries")
    order, redirect, count = os.environ["SCALING_ATTACH"], libraries.redirect, libraries.count_calls
    calls: dict[str, Any] = {
        "torch": lambda _: inside.start(),
        "subprocess": lambda module: libraries.after_subprocess(module, HERE, order),
        "sqlite3": lambda module: redirect(module, "connect", 0, "database", guard.changed),
        "h5py": lambda module: libraries.after_h5py(module, guard),
        # All of its functions that save call this one; those of its modules take it by name.
        "safetensors": lambda module: redirect(module, "serialize_file", 1, "filename", guard.emptied),
        "safetensors.torch": lambda module: redirect(module, "load_file", 0, "filename", guard.latest),
        "mlflow": libraries.after_mlflow,
        "wandb": libraries.after_wandb,
        "torch.utils.tensorboard.writer": lambda of: count(of.SummaryWriter, "add_", "tensorboard"),
        **dict.fromkeys(libraries.SENDS, libraries.leave_out),
    }
    for name in [name for name in calls if name in sys.modules]:
        calls.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _After(calls))


_run_existing()
if os.environ.get("SCALING_ATTACH"):
    _begin()
