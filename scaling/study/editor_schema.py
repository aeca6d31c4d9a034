"""A study file as JSON schema (2020-12), for editors: `scaling list schema`."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from scaling.study.kinds import KINDS
from scaling.study.parts import as_list, component
from scaling.study.schema import RECORDED_KEYS, Study

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
    """The schema of a study file.

    It takes what `parse_study` takes and refuses unknown keys and wrong values; rules between keys, such as
    which batch goes with which `scaling`, are checked by `scaling plan` alone.
    """
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
