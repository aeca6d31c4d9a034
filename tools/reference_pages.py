"""Makes docs/reference/{study-keys,columns,commands,arms}.md and studies/study.schema.json: `make reference`.

python tools/reference_pages.py            # writes the files
python tools/reference_pages.py --check    # exit code 1 if one is stale
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scaling.analysis.columns import MEANINGS, columns
from scaling.attach.arms import RULES
from scaling.attach.inside.arms import ARMS
from scaling.axes import Question
from scaling.cli import app
from scaling.study.kinds import KINDS
from scaling.study.parts import Alternatives, AnyPart, Part, Recipe, Strict, Training, TrainingPart, Workload
from scaling.study.schema import editor_schema

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
SCHEMA = FOLDER.parents[1] / "scaling/study/studies/study.schema.json"
GENERATED = "<!-- Made by `make reference`; do not edit. -->\n\n"
UNITS = {"_s": "s", "_bytes": "bytes", "_per_rank": "bytes", "_per_sample": "J", "joules_to_target": "J"}
NO_UNIT = (
    *("samples_per_s", "tokens_per_s"),
    *("flops_per_s_per_worker", "matrix_flops_per_s", "data_sheet_flops_per_s"),
)
"""Columns that end like a unit and have another one, which their meaning gives."""
LIMITS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def key_texts(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field of a model and of the models that it extends, in their order."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, Strict) or cls is Strict:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                assert isinstance(text, ast.Expr)
                assert isinstance(text.value, ast.Constant)
                found[field.target.id] = str(text.value.value)
    return found


def row(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def table(*head: str, rows: Iterable[str]) -> str:
    """A Markdown table."""
    return row(*head) + "|---" * len(head) + "|\n" + "".join(rows) + "\n"


def allowed(schema: Mapping[str, Any], *, in_list: bool = False) -> str:
    """What a key takes, from its JSON schema: `one of a, b`, `integer > 0`."""
    if "anyOf" in schema:
        outer = {name: schema[name] for name in LIMITS if name in schema}
        types = [one | outer for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(allowed(one, in_list=in_list) for one in types)
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        items = allowed(schema["items"], in_list=True)
        return f"list of {items}s" if in_list else f"{items}; or a list"
    if schema.get("type") in ("integer", "number"):
        limits = (f"{sign} {schema[name]:g}" for name, sign in LIMITS.items() if schema.get(name, 1e9) < 1e9)
        return " ".join([schema["type"], *limits])
    return {"boolean": "true, false", "string": "name"}.get(schema.get("type", ""), "name with parameters")


def default(field: FieldInfo) -> str:
    """A key's default as YAML has it; empty where there is none, or where the text has it."""
    value = field.default
    if field.is_required():
        return "required"
    if isinstance(value, list):
        return ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in value)
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def keys(model: type[Strict], *inherited: type[Strict]) -> str:
    """The table of a model's keys, without those of the models that have tables of their own."""
    schema = model.model_json_schema()
    texts = key_texts(model)
    definitions = schema.get("$defs", {})

    def resolved(one: Any) -> Any:
        if isinstance(one, dict) and "$ref" in one:
            return resolved(definitions[one["$ref"].rpartition("/")[2]])
        if isinstance(one, dict):
            return {} if "properties" in one else {name: resolved(value) for name, value in one.items()}
        return [resolved(value) for value in one] if isinstance(one, list) else one

    rows = []
    for name, field in model.model_fields.items():
        if name == "kind" or any(name in other.model_fields for other in inherited):
            continue
        said = allowed(resolved(schema["properties"][name]) | _limits(field))
        rows.append(row(f"`{name}`", said, default(field), texts[name]))
    return table("key", "allowed", "default", "meaning", rows=rows)


def _limits(field: FieldInfo) -> dict[str, float]:
    """Of an optional number, for which pydantic keeps them out of the schema."""
    names = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
    found = [(name, getattr(limit, short, None)) for limit in field.metadata for short, name in names.items()]
    return {name: value for name, value in found if value is not None}


def study_keys() -> str:
    """The page of all keys of a study file."""
    named = table("key", "meaning", rows=[
        row("`name`", "names the results folder: results/NAME"),
        row("`parts`", "list of parts, each with its own `kind`; keys next to it are defaults of all parts"),
        row("`question`", f"what is answered first: {', '.join(get_args(Question))}; default: by its cells"),
        row("`kind`", f"{', '.join(KINDS)}; default iteration"),
    ])  # fmt: skip
    sections = [
        "# Keys of a study file\n",
        "For whoever writes a study file: which keys are there?\n\n"
        "A key takes one value or, where the table says so, a list: each value is measured. Unknown keys are "
        "errors. An editor with the YAML language server completes and checks a file that begins with "
        "`# yaml-language-server: $schema=study.schema.json`: the shipped studies do, and it is beside them; "
        "`scaling list schema > study.schema.json` puts it beside your own.\n",
        f"## Every study\n\n{named}",
        f"## Every part\n\n{keys(AnyPart)}",
        f"## Parts with several workers\n\nOf all kinds but `device`.\n\n{keys(Part, AnyPart)}",
        f"## Parts that train a network\n\nOf `iteration` and `convergence`.\n\n"
        f"{keys(TrainingPart, Part, Training)}",
        f"### The optimizer\n\nIn a part, or in a workload, which wins.\n\n{keys(Training)}",
        "### A workload\n\n" + keys(Workload, Training, Recipe) + keys(Alternatives),
        f"### The recipe of a training\n\nIn `kind: convergence`, or in a workload.\n\n{keys(Recipe)}",
    ]
    for name, kind in KINDS.items():
        listed = [cls for cls in (AnyPart, Part, TrainingPart, Recipe) if issubclass(kind.part, cls)]
        own = keys(kind.part, *listed)
        sections.append(f"## kind: {name}\n\n{(kind.part.__doc__ or '').strip()}\n\n{own}")
    return "\n".join(sections)


def unit_of(column: str) -> str:
    """The unit that a column's name says; empty without one."""
    if column in NO_UNIT:
        return "1/s"
    if column.startswith(("predicted_s_to_", "seconds_to_")) or column.endswith(("_s_low", "_s_high")):
        return "s"
    return next((unit for end, unit in UNITS.items() if column.endswith(end)), "")


def column_page() -> str:
    """The page of the columns of summary.csv."""
    texts = {**key_texts(TrainingPart), **key_texts(Workload)}
    for kind in KINDS.values():
        texts = {**key_texts(kind.part), **texts}
    rows = [
        row(f"`{name}`", dtype.lower().rstrip("0123456789"), unit_of(name), MEANINGS.get(name) or texts[name])
        for name, dtype in columns().items()
    ]
    return (
        "# Columns of summary.csv\n\nFor whoever plots from a results folder: what is each column?\n\n"
        "One row a cell: first the settings, then the results. A missing value "
        "is empty. How each is measured: [how it measures](../background/measuring.md).\n\n"
        + table("column", "type", "unit", "meaning", rows=rows)
    )


def commands() -> str:
    """The page of the commands, as `--help` has them."""
    sections = [
        "# Commands\n\nFor whoever types a command: which are there, with which options?\n\n"
        "`-h` and `--help` work everywhere. stdout has data, stderr messages. STUDY is a file "
        "or the name of a shipped study (`scaling list studies`); `key=value` overrides its keys.\n\nExit "
        "codes: 0 ok; 1 failed cells; 2 wrong usage or input; 3 undecided or regression; 130 interrupted; "
        "141 stdout is read no more.\n"
    ]
    for path, command in _leaves(typer.main.get_command(app), "scaling"):
        rows = []
        for option in command.params:
            if option.name == "help" or getattr(option, "hidden", False):
                continue
            is_argument = option.param_type_name == "argument"
            said = (
                str(option.name).upper() if is_argument else ", ".join([*option.opts, *option.secondary_opts])
            )
            rows.append(row(f"`{said}`", " ".join((getattr(option, "help", "") or "").split())))
        text = " ".join((command.help or "").partition("\f")[0].split())
        example = (command.epilog or "").removeprefix("Example: ")
        shown = f"\n    {example}\n" if example else ""
        sections.append(
            f"## {path}\n\n{text}\n{shown}\n" + (table("argument", "meaning", rows=rows) if rows else "")
        )
    return "\n".join(sections)


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, one in sorted(command.commands.items()):
        yield from _leaves(one, f"{path} {name}")


def arms() -> str:
    """What `scaling attach` changes in a script."""
    rows = [
        row(
            f"`{arm.name}`", arm.when, arm.change, f"{arm.question}?",
            "; ".join(RULES[rule][0] for rule in arm.skipped),
        )
        for arm in ARMS.values()
    ]  # fmt: skip
    return (
        "# Arms of `scaling attach`\n\n"
        "For whoever reads an answer of `attach`: what was changed, and when?\n\n"
        "What is changed in a script, one thing at a time. Arms that are switched are on in blocks of steps "
        "within one process.\n\n"
        + table("arm", "runs", "what is changed", "question", "skipped where", rows=rows)
    )


def pages() -> dict[str, str]:
    """File name -> the page's text."""
    made = {"study-keys.md": study_keys(), "columns.md": column_page(), "commands.md": commands()}
    made["arms.md"] = arms()
    return {name: GENERATED + text.rstrip() + "\n" for name, text in made.items()}


def schema_text() -> str:
    """The schema that the shipped studies name, in one line."""
    return json.dumps(editor_schema(), separators=(",", ":")) + "\n"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="docs/reference and the schema of studies from the code")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if one is stale")
    check = parser.parse_args().check
    is_stale = False
    files = {FOLDER / name: text for name, text in pages().items()} | {SCHEMA: schema_text()}
    for path, text in files.items():
        is_stale |= not path.exists() or path.read_text(encoding="utf-8") != text
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and is_stale)


if __name__ == "__main__":
    raise SystemExit(main())
