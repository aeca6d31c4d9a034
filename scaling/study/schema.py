"""The study file: what may stand in it, and what it means.

A study has a name and one or several parts; keys next to `parts` are defaults for every part. Unknown keys
and wrong values are errors that name the key, what is allowed and the rule.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import Field, SerializeAsAny, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from scaling.axes import Question
from scaling.errors import StudyError
from scaling.study.kinds import KINDS
from scaling.study.parts import (
    Alternatives,
    AnyPart,
    Recipe,
    Strict,
    TrainingPart,
    Workload,
    as_list,
    component,
)

RECORDED_KEYS = ("schema_version", "notes")


class Study(Strict):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=255)  # of a folder
    parts: tuple[SerializeAsAny[AnyPart], ...]
    question: Question | None = None


def parse_study(raw: object, source: str) -> Study:
    """Validates a parsed study file. Raises StudyError: naming every key that is wrong, and the rule."""
    if not isinstance(raw, Mapping):
        raise StudyError(f"{source}: a study is a mapping of keys, as in `name: my-study`")
    if "name" not in raw:
        raise StudyError(f"{source}: key 'name' is missing; it names the results folder")
    # What a results folder's study.yaml has besides: it can be run again as it is.
    inherited = {
        key: value for key, value in raw.items() if key not in ("name", "parts", "question", *RECORDED_KEYS)
    }
    if "parts" not in raw:
        bodies = [("", dict(inherited))]
    else:
        if not isinstance(raw["parts"], list) or not raw["parts"]:
            raise StudyError(f"{source}: 'parts' must be a list of parts, each with its own 'kind'")
        bodies = []
        for index, part in enumerate(raw["parts"]):
            if not isinstance(part, Mapping):
                raise StudyError(f"{source}: parts.{index} must be a mapping of keys")
            bodies.append((f"parts.{index}.", {**_inheritable(inherited, part, source), **part}))
    parts = tuple(_parse_part(body, prefix, source) for prefix, body in bodies)
    try:
        return Study(name=raw["name"], parts=parts, question=raw.get("question"))
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("question",):
            allowed = ", ".join(get_args(Question))
            raise StudyError(f"{source}: question is {raw['question']!r}; allowed: {allowed}") from error
        raise StudyError(
            f"{source}: name {raw['name']!r:.60} is not allowed; use letters, digits, '.', '_' and '-', "
            "255 at most"
        ) from error


def _inheritable(inherited: Mapping[str, Any], part: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The keys next to `parts` that a part of this kind knows; a key that no kind knows is an error."""
    kind = part.get("kind", inherited.get("kind", "iteration"))
    known = {key for other in KINDS.values() for key in other.part.model_fields}
    for key in inherited:
        if key not in known:
            raise StudyError(f"{source}: {_unknown(key, sorted(known | {'name', 'parts', 'question'}))}")
    of_kind = KINDS[kind].part.model_fields if kind in list(KINDS) else inherited
    return {key: value for key, value in inherited.items() if key in of_kind}


def _parse_part(body: dict[str, Any], prefix: str, source: str) -> AnyPart:
    kind = body.get("kind", "iteration")
    if kind not in list(KINDS):  # a list is not hashable
        raise StudyError(f"{source}: {prefix}kind is {kind!r}; allowed: {', '.join(KINDS)}")
    cls = KINDS[kind].part
    try:
        part: AnyPart = cls.model_validate(body)
    except ValidationError as error:
        lines = [f"{source}: {_explain(dict(problem), prefix, kind)}" for problem in error.errors()]
        raise StudyError("\n".join(lines)) from None
    if isinstance(part, TrainingPart):
        _check_workloads(part, prefix, source)
    return part


def _check_workloads(part: TrainingPart, prefix: str, source: str) -> None:
    for index, choice in enumerate(part.workloads):
        for workload in choice.first_available if isinstance(choice, Alternatives) else [choice]:
            _check_batch(workload, part.scaling, f"{source}: {prefix}workloads.{index}")
            for key in Recipe.model_fields:
                if getattr(workload, key) is not None and key not in type(part).model_fields:
                    raise StudyError(
                        f"{source}: key '{prefix}workloads.{index}.{key}' belongs to kind: "
                        f"{' or '.join(_kinds_with(key))}; leave it out"
                    )


def _check_batch(workload: Workload, scaling: str, where: str) -> None:
    wanted, other = (
        ("global_batch", "local_batch") if scaling == "strong" else ("local_batch", "global_batch")
    )
    if getattr(workload, wanted) is None or getattr(workload, other) is not None:
        raise StudyError(
            f"{where}: scaling: {scaling} keeps the {wanted} constant over world sizes, so the workload "
            f"needs {wanted} and must not have {other}"
        )


def _kinds_with(key: str) -> list[str]:
    return [name for name, kind in KINDS.items() if key in kind.part.model_fields]


def _explain(problem: dict[str, Any], prefix: str, kind: str) -> str:
    # Behind workloads.<index> and bucket_mb.<index> stands the union's tag; elsewhere a user's own keys.
    tags = ("workload", "choice", "size", "sizes")
    location = [p for at, p in enumerate(problem["loc"]) if at != 2 or p not in tags]
    key = prefix + ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        name = str(location[-1])
        if len(location) == 1 and (kinds := _kinds_with(name)):
            reason = KINDS[kind].why_other_keys_are_wrong
            why = KINDS[kinds[0]].part.model_fields[name].description
            return (
                f"key {key!r} belongs to kind: {' or '.join(kinds)}{reason and f'; {reason}'}"
                f"{f' ({why})' if why else ''}; leave it out, or change the part's kind"
            )
        fields = KINDS[kind].part.model_fields if len(location) == 1 else Workload.model_fields
        return _unknown(name, sorted(fields), key)
    if problem["type"] == "missing":
        hint = " (strong keeps the global batch, weak the local batch)" if location[-1] == "scaling" else ""
        return f"key {key!r} is missing{hint}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{key} is {problem['input']!r}: {message[0].lower()}{message[1:]}"


def _unknown(name: str, allowed: list[str], key: str | None = None) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown key {key or name!r}{hint} (allowed: {', '.join(allowed)})"


REFERENCE = "#/$defs/{model}"


class _AsWritten(GenerateJsonSchema):
    """What a file may hold, not what becomes of it: a value in place of a list, a name, a word."""

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        inner, function = self.generate_inner(schema["schema"]), schema["function"]["function"]
        if function is component:
            named = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
            return {"anyOf": [{"type": "string"}, named]}
        return {"anyOf": [inner["items"], inner]} if function is as_list else inner

    def function_wrap_schema(self, schema: Any) -> JsonSchemaValue:
        inner = super().function_wrap_schema(schema)
        words = getattr(schema["function"]["function"], "words", ())
        return {"anyOf": [{"enum": list(words)}, inner]} if words else inner


def editor_schema() -> dict[str, Any]:
    """The schema of a study file: what `parse_study` takes, but for rules between keys."""
    parts = [kind.part for kind in KINDS.values()]
    _, made = models_json_schema(
        [(part, "validation") for part in parts], ref_template=REFERENCE, schema_generator=_AsWritten
    )
    definitions = made["$defs"]
    keys: dict[str, Any] = {}
    for part in parts:
        own = definitions[part.__name__]
        own.pop("required", None)  # a key may stand next to `parts`
        for key, value in own["properties"].items():
            known = keys.setdefault(key, {"anyOf": []})["anyOf"]
            known.extend([value] if value not in known else [])
    bodies = [{"$ref": REFERENCE.format(model=part.__name__)} for part in parts]
    whole = Study.model_json_schema()["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Study",
        "type": "object",
        "required": ["name"],
        "additionalProperties": False,
        "properties": {
            "name": whole["name"],
            "question": whole["question"],
            "parts": {"type": "array", "minItems": 1, "items": {"anyOf": bodies}},
            **{key: {} for key in RECORDED_KEYS},
            **keys,
        },
        "$defs": definitions,
    }
