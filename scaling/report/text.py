"""Findings in words: the one place where text is made of them, for terminal, page and Markdown.

A template in templates/findings/ is a macro of the finding's kind; its argument holds the finding's values.
Line breaks and indents of a template are no part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from scaling.analysis.columns import OLDER_CODE, SEPARATOR, Row, workers_of
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup, without_older_code
from scaling.axes import axis, workers
from scaling.files.texts import gigabytes
from scaling.measure.probe.series import size_text
from scaling.report import formats
from scaling.report.formats import listed, percent

UNITS = {
    "iteration_ms": "ms a step",
    "sample_us": "us a sample",
    "memory_gb": "GB on the fullest GPU",
    "gpu_hours": "GPU hours a billion samples",
    "worker_hours": "worker hours a billion samples",
    "energy": "J a thousand samples",
}
"""Quantity of a candidate (`scaling.analysis.candidates`) -> its unit."""


def unit_of(values: Mapping[str, Any]) -> str:
    if values["quantity"] == "training_s":
        return f"s to {percent(values['target_accuracy'])}"
    return UNITS[values["quantity"]]


def title_parts(given: Mapping[str, Any]) -> list[str]:
    """What cells of a group or workload have in common, part by part, the model and the data set first."""
    first = f"{given['model']} on {given['dataset']}"
    further = [axis(name).text(value) for name, value in given["further"].items()]
    if "target_accuracy" in given:
        return [f"{first} to an accuracy of {percent(given['target_accuracy'])}", given["device"], *further]
    is_weak = given["scaling"] == "weak"
    batch = f"local batch {given['batch']}" if is_weak else f"global batch {given['batch']}"
    return [first, f"{given['scaling']} scaling", batch, given["device"], *further]


def title_of(given: Mapping[str, Any]) -> str:
    return ", ".join(title_parts(given))


def short_names(titles: Sequence[Sequence[str]]) -> list[list[str]]:
    if len(titles) < 2:
        return [list(parts[:1]) for parts in titles]
    shared = set(titles[0]).intersection(*titles[1:])
    return [[parts[0], *(part for part in parts[1:] if part not in shared)] for parts in titles]


TEMPLATES = Path(__file__).parent / "templates"
FINDINGS = TEMPLATES / "findings"
MACRO = re.compile(r"{%-?\s*macro\s+([a-z]\w*)\s*\(")


@dataclass(frozen=True)
class Sentence:
    """What is said, the ids of the cells that it is about, and the finding's kind."""

    text: str
    cells: tuple[str, ...] = ()
    kind: str = ""


def sentences_of(findings: Iterable[Finding]) -> list[Sentence]:
    return [Sentence(text_of(finding), finding.cells, finding.kind) for finding in findings]


def text_of(finding: Finding, part: str = "") -> str:
    macro = _macro(f"{finding.kind}_{part}" if part else finding.kind)
    return " ".join(macro(finding.values).split())


def recipe_text(row: Row) -> str:
    """How the training of a row was trained: `learning rate 0.1 x global batch / 128 (linear), ...`."""
    return text_of(Finding("recipe", (), row))


def next_experiment(finding: Finding) -> str | None:
    """What would tell more of a finding of `explain`, or mend it; None where there is nothing to try."""
    return text_of(finding, "next") or None


def line_of(finding: Finding) -> str:
    """What limits a cell, with what to do next: `...; try step=captured`."""
    return "; ".join(filter(None, [text_of(finding), next_experiment(finding)]))


def environment(folder: Path, *, autoescape: bool) -> jinja2.Environment:
    """Templates of a folder, with the filters that show numbers; a name without a value is an error."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=autoescape,  # noqa: S701 (off for the terminal and Markdown)
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (
        "bar duration interval like megabytes milliseconds number of_speedup of_times on_gpus percent points "
        "rate ratio spread two_digits"
    )
    templates.filters |= {name: getattr(formats, name) for name in shown.split()}
    templates.filters |= {"listed": _listed, "setting": _setting, "setting_name": _setting_name}
    templates.filters |= {"title": title_of, "unit": unit_of, "workers": workers}
    templates.filters |= {"gigabytes": gigabytes, "size": size_text}
    return templates


@cache
def _templates() -> jinja2.Environment:
    templates = environment(FINDINGS, autoescape=False)
    own = {"text": text_of, "line": line_of, "next": next_experiment, "untried": untried, "repeats": _repeats}
    templates.filters |= own
    templates.filters["cost"] = lambda ratio: formats.percent(ratio, 1 if abs(ratio) < 0.1 else 0)
    templates.filters["gb"] = lambda num_bytes: formats.number(num_bytes / 1e9)
    templates.filters["sentence"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    return templates


@cache
def macros() -> Mapping[str, str]:
    """Kind -> the template that has its macro; names with an underscore in front are parts of others."""
    templates: dict[str, str] = {}
    for path in sorted(FINDINGS.glob("*.j2")):
        for kind in MACRO.findall(path.read_text(encoding="utf-8")):
            assert kind not in templates, f"two templates of findings are called {kind}"
            templates[kind] = path.name
    return templates


@cache
def _macro(kind: str) -> Callable[[Any], str]:
    """The macro of that kind: a template is compiled when something of it is said."""
    macro: Callable[[Any], str] = getattr(_templates().get_template(macros()[kind]).module, kind)
    return macro


def untried(
    values: Mapping[str, Any], key: str, *options: object, more: str = "", is_less: bool = False
) -> str:
    """Every `try`: options that the study did not measure, or `more` of a setting (less) than all that it
    measured, as `a larger batch|a batch above {}`; "" where nothing is left."""
    measured = values["measured"][key]
    if more:
        own, *others = (value or 0 for value in measured)
        beyond = [value for value in others if value != own and (value < own) == is_less]
        first, further = more.split("|")
        return f"try {further.format(f'{max(beyond):,}') if beyond else first}"
    left = [str(option) for option in options if option not in measured]
    named = "" if key == "aggregator" else f"{key}="
    return f"try {named}{' or '.join(left if not named else map(str.lower, left))}" if left else ""


def _repeats(workload: Mapping[str, Any], number: int) -> str:
    """`repeats=3`: a key of a study; a script, or a table from elsewhere, has none."""
    is_ours = workload["further"].get("optimizer") != "script"
    return f"repeats={number}" if is_ours else f"measure each number of workers {number} times"


def _listed(words: Iterable[Any], last: str = "and") -> str:
    return formats.listed([str(word) for word in words], last)


def _setting(setting: Mapping[str, Any]) -> str:
    return f"{setting['name']} on {workers(setting['world_size'], setting.get('unit', 'worker'))}"


def _setting_name(setting: Mapping[str, Any]) -> str:
    further = ", ".join(setting["further"])
    return f"{setting['name']} ({further})" if further else str(setting["name"])


def warning_text(warning: Finding) -> str:
    return f"{text_of(warning, 'title')}: {text_of(warning)}"


def with_texts(table: pd.DataFrame) -> pd.DataFrame:
    shown: dict[str, Callable[[Any], str]] = {
        "warnings": lambda warnings: SEPARATOR.join(map(warning_text, warnings)),
        "exposed_check": text_of,
    }
    texts = {name: table[name].map(show, na_action="ignore") for name, show in shown.items()}
    return table.assign(**{name: column.astype("string") for name, column in texts.items()})


def warnings_of(group: CellGroup, most: int | None = None) -> list[str]:
    kinds: dict[str, dict[str, list[str]]] = {}
    older: dict[str, dict[str, list[int]]] = {}
    for row in group.rows:
        for warning in row["warnings"] or ():
            if warning.kind == OLDER_CODE:
                sizes = older.setdefault(text_of(warning, "cells"), {})
                sizes.setdefault(without_older_code(group.name(row)), []).append(row["world_size"])
                continue
            names = kinds.setdefault(text_of(warning, "title"), {}).setdefault(text_of(warning), [])
            names.append(f"{group.name(row)} on {workers_of(row)}")
    said = [f"{_with_sizes(sizes, group.unit)}: {text}" for text, sizes in older.items()]
    for title, details in kinds.items():
        texts = [f"{detail} ({', '.join(names)})" for detail, names in details.items()]
        if most is not None and len(texts) > most + 1:
            texts[most:] = [f"{len(texts) - most} more in summary.csv"]
        said.append(f"{title}: {'; '.join(texts)}")
    return said


def _with_sizes(sizes: Mapping[str, Sequence[int]], unit: str) -> str:
    """`cntk (2 and 4 GPUs), one_bit (1 GPU)`."""
    texts = []
    for name, numbers in sizes.items():
        *fewer, most = sorted(set(numbers))
        texts.append(f"{name} ({listed([*map(str, fewer), workers(most, unit)])})")
    return ", ".join(texts)
