"""What is changed in modules after they are loaded, so that the guard holds for what they start or open."""

from __future__ import annotations

import os
from typing import Any

from .guard import Guard


def after_subprocess(module: Any, path: str, order: str) -> None:
    """Programs that are started with an environment of their own have the guard too, if they are Python."""
    begin = module.Popen.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        if (own := named.get("env")) is not None and "SCALING_ATTACH" not in own:
            known = [path, own["PYTHONPATH"]] if own.get("PYTHONPATH") else [path]
            named["env"] = {**own, "PYTHONPATH": os.pathsep.join(known), "SCALING_ATTACH": order}
        begin(self, *arguments, **named)

    module.Popen.__init__ = init


def after_sqlite3(module: Any, guard: Guard) -> None:
    connect = module.connect
    module.connect = lambda database, *arguments, **named: connect(
        guard.instead(database, is_emptied=False), *arguments, **named
    )


def after_h5py(module: Any, guard: Guard) -> None:
    """Its files are opened by a library in C."""
    begin = module.File.__init__

    def init(self: Any, name: Any, mode: str = "r", *arguments: Any, **named: Any) -> None:
        is_written = mode in ("w", "a", "r+")
        place = guard.instead(name, is_emptied=mode == "w") if is_written else guard.latest(name)
        begin(self, place, mode, *arguments, **named)

    module.File.__init__ = init


def after_safetensors(module: Any, guard: Guard) -> None:
    """All of its functions that save call this one; those of its modules take it by name."""
    serialize = module.serialize_file
    module.serialize_file = lambda tensors, filename, *arguments, **named: serialize(
        tensors, guard.instead(filename, is_emptied=True), *arguments, **named
    )


def after_safetensors_torch(module: Any, guard: Guard) -> None:
    """What was saved in place of an older file is what is loaded."""
    load = module.load_file
    module.load_file = lambda filename, *arguments, **named: load(guard.latest(filename), *arguments, **named)


def after_mlflow(module: Any) -> None:
    for holder in (module, getattr(module, "tracking", None)):
        for name in ("set_tracking_uri", "set_registry_uri"):
            if hasattr(holder, name):
                setattr(holder, name, lambda *_, **__: None)
    if (client := getattr(module, "MlflowClient", None)) is not None:
        begin = client.__init__
        client.__init__ = lambda self, *_, **__: begin(self)
