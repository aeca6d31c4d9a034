"""What is changed in modules after they are loaded, so that the guard holds for what they start or open."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from .guard import Guard

LEFT_OUT = Counter[str]()  # of this process: calls that send something elsewhere, or log it with a tracker
_BOTO3 = "upload_file bucket_upload_file object_upload_file"
SENDS = {  # module -> its class, and the functions of either that send files elsewhere
    "huggingface_hub.hf_api": ("HfApi", "upload_folder upload_file upload_large_folder create_commit"),
    "transformers.trainer": ("Trainer", "push_to_hub"),
    "transformers.modeling_utils": ("PreTrainedModel", "push_to_hub"),
    "boto3.s3.inject": ("", f"{_BOTO3} {_BOTO3.replace('file', 'fileobj')}"),
    "google.cloud.storage.blob": ("Blob", "upload_from_filename upload_from_file upload_from_string"),
}


def around(holder: Any, name: str) -> Callable[[Callable[..., Any]], Any]:
    """Puts what it decorates in the place of a function, which it is given before the arguments."""

    def put(call: Callable[..., Any]) -> Any:
        original = getattr(holder, name)

        @functools.wraps(original)
        def called(*arguments: Any, **named: Any) -> Any:
            return call(original, *arguments, **named)

        setattr(holder, name, called)
        return called

    return put


def redirect(holder: Any, name: str, at: int, argument: str, place: Callable[[Any], Any]) -> None:
    """Makes a function open another path than the argument at that position, or of that name, says."""

    @around(holder, name)
    def _(call: Any, *arguments: Any, **named: Any) -> Any:
        if argument in named:
            named[argument] = place(named[argument])
        else:
            arguments = (*arguments[:at], *map(place, arguments[at : at + 1]), *arguments[at + 1 :])
        return call(*arguments, **named)


def after_subprocess(module: Any, path: str, order: str) -> None:
    """Programs that are started with an environment of their own have the guard too, if they are Python."""

    @around(module.Popen, "__init__")
    def _(begin: Any, self: Any, *arguments: Any, **named: Any) -> None:
        if (own := named.get("env")) is not None and "SCALING_ATTACH" not in own:
            known = [path, own["PYTHONPATH"]] if own.get("PYTHONPATH") else [path]
            named["env"] = {**own, "PYTHONPATH": os.pathsep.join(known), "SCALING_ATTACH": order}
        begin(self, *arguments, **named)


def after_h5py(module: Any, guard: Guard) -> None:

    @around(module.File, "__init__")
    def _(begin: Any, self: Any, name: Any, mode: str = "r", *arguments: Any, **named: Any) -> None:
        is_written = mode in ("w", "a", "r+")
        place = guard.instead(name, is_emptied=mode == "w") if is_written else guard.latest(name)
        begin(self, place, mode, *arguments, **named)


def leave_out(module: Any) -> None:
    owner, names = SENDS[module.__name__]
    for holder in (module, getattr(module, owner, None)):
        for name in names.split():
            if hasattr(holder, name):
                around(holder, name)(lambda *_, **__: LEFT_OUT.update(uploads=1))


def count_calls(holder: Any, prefix: str, tracker: str) -> None:
    for name in [one for one in dir(holder) if one.startswith(prefix) and callable(getattr(holder, one))]:

        @around(holder, name)
        def _(log: Any, *arguments: Any, **named: Any) -> Any:
            LEFT_OUT[tracker] += 1
            return log(*arguments, **named)


def after_wandb(module: Any) -> None:
    @around(module, "init")
    def _(init: Any, *arguments: Any, **named: Any) -> Any:
        begun = init(*arguments, **named)
        for holder in (begun, module):
            count_calls(holder, "log", "wandb")
        return begun


def after_mlflow(module: Any) -> None:
    count_calls(module, "log_", "mlflow")
    for holder in (module, getattr(module, "tracking", None)):
        for name in ("set_tracking_uri", "set_registry_uri"):
            if hasattr(holder, name):
                setattr(holder, name, lambda *_, **__: None)
    if (client := getattr(module, "MlflowClient", None)) is not None:
        around(client, "__init__")(lambda begin, self, *_, **__: begin(self))
