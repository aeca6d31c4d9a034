"""Name -> aggregator, as `scaling.aggregator_names` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.aggregator_names import BUILT_IN, REGISTRY
from scaling.aggregators.base import Aggregator
from scaling.errors import StudyError

__all__ = ["BUILT_IN", "REGISTRY", "create"]


def create(name: str, parameters: Mapping[str, Any] | None = None) -> Aggregator[Any]:
    """The aggregator of that name with those parameters, checked against its fields' types. StudyError: the
    name is unknown, a parameter is unknown or of the wrong type or value, or the class has no `name`, or that
    of another aggregator."""
    instance: Aggregator[Any] = REGISTRY.create(name, Aggregator, parameters)
    stated_name = getattr(instance, "name", None)
    if not isinstance(stated_name, str) or not stated_name:
        raise StudyError(f"aggregator {name!r}: its class needs a `name`, a text that is its label in tables")
    own_path = f"{type(instance).__module__}:{type(instance).__qualname__}"
    if BUILT_IN.get(stated_name, own_path) != own_path:
        raise StudyError(
            f"aggregator {name!r} has the name {stated_name!r} of another one, {BUILT_IN[stated_name]}: "
            "give its class a `name` of its own, under which its results are shown"
        )
    return instance
