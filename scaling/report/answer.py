"""A study's answer: a sentence, what limits, how sure, what next, and a table of a row a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scaling.analysis.findings import Finding
from scaling.axes import workers
from scaling.report.formats import (
    MISSING,
    milliseconds,
    number,
    of_speedup,
    of_times,
    percent,
    points,
    ratio,
    spread,
)
from scaling.report.tables import Column, Table, table_of, without_empty_columns
from scaling.report.text import short_names, text_of, title_parts
from scaling.report.verdict_text import names_of, short, verdict_lines

LIMITS = {
    "busy_host": "busy host",
    "codec": "encoding",
    "exposed_communication": "exchange",
    "feeding": "input",
    "host_sums": "host copies",
    "launches": "kernel launches",
    "not_hidden": "exchange",
    "open_time": "other",
    "oversubscribed": "too few cores",
    "periodic": "periodic stalls",
    "shared_gpu": "shared GPU",
    "tiny_buckets": "small buckets",
    "update": "optimizer",
}
"""Kind of a limit -> what it is called in a table; others are called by their kind."""

FIRST = ("Limit: ", "Sure", "Not sure", "Next: ")
"""How lines begin that say what limits, how sure, what next: they stand before the table."""
LATER = ("launch_set_aside", "several_hosts", "unfinished")  # cautions that stand below the table


@dataclass(frozen=True)
class Answer:
    sentence: str = ""
    table: Table | None = None
    details: list[str] = field(default_factory=list)
    command: str = ""
    cells: Sequence[str] = ()
    explained: list[str] = field(default_factory=list)  # stands below the table

    @property
    def first(self) -> list[str]:
        """What stands before the table, the command last."""
        *lines, last = [text for text in (self.sentence, *self.details) if text] or [""]
        return [*lines, f"{last} {self.command}".rstrip()]

    @property
    def lines(self) -> list[str]:
        return [*self.first, *self.explained]


def answer_of(
    verdicts: Sequence[Finding],
    command: str = "",
    cautions: Sequence[Finding] = (),
    answers: Sequence[Finding] = (),
) -> Answer:
    sentence, *details = verdict_lines(verdicts, command)
    is_target = bool(answers) and answers[0].kind == "answer_target"
    if is_target:  # its sentence names the aggregator
        details = [line for line in details if not line.startswith("Aggregator:")]
    elif answers:  # it names the aggregator that was asked for
        details = [line.replace("Aggregator:", "Fastest without loss:", 1) for line in details]
    others = [one for one in verdicts[1:] if one.values["objective"] != verdicts[0].values["objective"]]
    if "iteration_s" in verdicts[0].values:
        details[:0] = [text_of(one, "training") for one in others[:1]]
    elif others:  # what limits a training is what limits its step
        timed = next((one for one in others if is_target and one.cells[0] in answers[0].cells), others[0])
        details[:0] = [f"Limit: {limit}." for limit in [text_of(timed, "limit")] if limit]
    if command:
        details[-1] = details[-1].removesuffix(f" {command}")
    explained = [line for line in details if not line.startswith(FIRST)]
    details = [line for line in details if line.startswith(FIRST)]
    limit, mark, more = details[0].partition("; ")
    if mark and limit.startswith("Limit"):
        details[0] = f"{limit}."
        explained.append(f"{more[0].upper()}{more[1:]}")
    if answers and answers[0].kind == "answer_compression":  # the verdict is of the fastest without loss
        details = [line.replace("Limit:", "Limit without loss:", 1) for line in details]
    speedup = verdicts[0].values["speedup"] if verdicts[0].values["world_size"] > 1 else None
    if answers and not is_target and speedup is not None:
        details.insert(0, text_of(verdicts[0], "headline"))
    for one in cautions:
        (explained if one.kind in LATER else details).insert(0, text_of(one))
    answer = Answer(sentence, None, details, command, verdicts[0].cells, explained)
    if not answers:
        return replace(answer, table=workers_table(verdicts))
    asked = question_answer(answers)
    sentence = " ".join(filter(None, [text_of(verdicts[0], "doubt"), asked.sentence]))
    return replace(answer, sentence=sentence, table=asked.table, cells=asked.cells)


def question_answer(answers: Sequence[Finding]) -> Answer:
    first, names = answers[0], _row_names(answers)
    is_named = first.kind in ("answer_compression", "answer_target")
    is_named |= len(answers) > 1 and first.kind != "answer_trained"
    said = text_of(first)
    sentence = f"{names[0]}: {said[0].lower()}{said[1:]}" if is_named else said
    items = [(name, answer.values) for name, answer in zip(names, answers, strict=True)]
    title, statistic, columns = TABLES[first.kind]
    exact = [place for place, (_, values) in enumerate(items) if values.get("lost", 0) is None]
    cells = [list(one.cells) for one in answers]
    table = table_of(title, statistic, columns, items, cells=cells, bounds=exact)
    if all(one.values.get("device") == "cuda" for one in answers):
        table = replace(table, headings=["GPUs" if name == "workers" else name for name in table.headings])
    return Answer(sentence, without_empty_columns(table), cells=first.cells)


def _row_names(answers: Sequence[Finding]) -> list[str]:
    """Of each row its workload or training, by what differs; the link of compression in any case."""
    titles = [_title(one.values) for one in answers]
    names = short_names(titles)
    if answers[0].kind == "answer_compression":
        names = [[*dict.fromkeys([*name, title[-1]])] for name, title in zip(names, titles, strict=True)]
    return [short(", ".join(filter(None, name))) for name in names]


def _title(values: Mapping[str, Any]) -> list[str]:
    if "knee" in values:
        return [text_of(Finding("learning_goal", (), values))]
    link = {True: "peer access", False: "host-only"}.get(values["peer_access"], "")
    if "given" in values:
        return [*title_parts(values["given"]), link]
    aggregator = f"{values['aggregator']}{', exact' * (values['lost'] is None)}"
    return [aggregator, f"{values['model']} on {values['dataset']}", workers(values["world_size"]), link]


def _choice(kind: str) -> list[Column[Any]]:
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        f"fastest {kind}": lambda one: ", ".join(filter(None, [one["aggregator"], one["step"]])),
        f"{kind}, ms": lambda one: milliseconds(one["iteration_s"]),
        "x DDP": lambda one: f"{one['times']:.2f}{of_times(one)}",
    }
    return [
        Column(header, lambda item, show=show: show(item[1][kind]) if item[1][kind] else MISSING)  # type: ignore[misc]
        for header, show in shown.items()
    ]


def _least(item: Any) -> str:
    values, choice, size = item[1], item[1]["choice"], item[1]["choice"]["world_size"]
    on = "" if size == values["world_size"] else f" on {size}"
    off = ", host-only" if choice["peer_access"] is False else ""
    return f"{choice['aggregator']}{on}{off}" if size > 1 else "one worker"


_WORKLOAD = Column[Any]("workload", lambda item: item[0])
_GPUS = Column[Any]("workers", lambda item: str(item[1]["world_size"]))
_DDP_MS = Column[Any]("DDP, ms", lambda item: milliseconds(item[1]["iteration_s"]))
_AGAINST_DDP = (
    "A step; DDP: the library's all-reduce, overlapped if that was timed. Points: of accuracy, where trained "
    "(on N: that many workers)."
)


def _lost(item: Any) -> str:
    lossy = item[1]["lossy"] or {}
    if lossy.get("lost") is None:
        return MISSING
    return points(lossy["lost"]) + (f" on {lossy['lost_on']}" if lossy["lost_on"] else "")


_LOST = Column[Any]("points", _lost)
_BASIS = (_WORKLOAD, _GPUS, _DDP_MS)

TABLES: dict[str, tuple[str, str, list[Column[Any]]]] = {
    "answer_aggregator": (
        "The fastest against DDP",
        _AGAINST_DDP,
        [*_BASIS, *_choice("exact")[::2], *_choice("lossy")[::2]],
    ),
    "answer_compression": ("Compression against DDP", _AGAINST_DDP, [*_BASIS, *_choice("lossy"), _LOST]),
    "answer_memory": (
        "Memory against time",
        "Peak of the fullest GPU, and a step's time; of ties in memory the fastest.",
        [
            _WORKLOAD,
            _GPUS,
            Column("DDP, GB", lambda item: number(item[1]["memory_peak_bytes"] / 1e9)),
            _DDP_MS,
            Column("least memory", _least),
            Column("GB", lambda item: number(item[1]["choice"]["memory_peak_bytes"] / 1e9)),
            Column("ms", lambda item: milliseconds(item[1]["choice"]["iteration_s"])),
        ],
    ),
    "answer_buckets": (
        "The fastest size of buckets",
        "Milliseconds a step with the library's all-reduce, overlapped.",
        [
            _WORKLOAD,
            _GPUS,
            Column("MiB", lambda item: f"{item[1]['best']['bucket_mb']:g}"),
            Column("ms", lambda item: milliseconds(item[1]["best"]["iteration_s"])),
            Column("slowest, MiB", lambda item: f"{item[1]['worst']['bucket_mb']:g}"),
            Column("ms", lambda item: milliseconds(item[1]["worst"]["iteration_s"])),
            Column("x as long", lambda item: ratio(item[1]["times"]) + of_times(item[1])),
        ],
    ),
    "answer_target": (
        "The fastest to the target",
        "Fitted steps times the time of a step; x as fast: than the fewest workers at their best batch.",
        [
            Column("training", lambda item: item[0]),
            _GPUS,
            Column("batch", lambda item: f"{item[1]['best']['global_batch']:,}"),
            Column("rate", lambda item: f"{rate:.3g}" if (rate := item[1]["best"]["rate"]) else MISSING),
            Column("time", lambda item: f"{number(item[1]['best']['seconds'].value)} s"),
            Column("x as fast", lambda item: ratio(item[1]["times"]) if item[1]["times"] else MISSING),
        ],
    ),
    "answer_trained": (
        "Accuracy of lossy trainings",
        "After the last epoch; points: above (+) or below (-) the best exact training.",
        [
            Column("aggregator", lambda item: item[0]),
            Column("accuracy", lambda item: percent(item[1]["final_test_accuracy"], 2)),
            Column("points", lambda item: MISSING if item[1]["lost"] is None else points(item[1]["lost"])),
            Column("training, s", lambda item: number(item[1]["train_s"])),
        ],
    ),
}
"""Kind of an answer -> title, statistic and columns of its table."""


def workers_table(verdicts: Sequence[Finding]) -> Table:
    units = {verdict.values["unit"] for verdict in verdicts}
    worker = units.pop() if len(units) == 1 else "worker"
    headings = ["workload", f"{worker}s", "time", "±", "speedup", "aggregator", "limit"]
    rows = []
    for name, verdict in zip(names_of(verdicts), verdicts, strict=True):
        values, size = verdict.values, verdict.values["world_size"]
        more = f" or {len(values['ties'])} more" if values["ties"] else ""
        is_alone = [*values["world_sizes"]] == [1]
        # One launch shows no more than the spread of its own steps.
        width = "" if values["confidence"] == "one_launch" else spread(values["half_width_ratio"])
        rows.append(
            [
                short(name),
                str(size),
                text_of(verdict, "time").partition(" a step")[0],
                width or MISSING,
                MISSING if is_alone else ratio(values["speedup"]) + of_speedup(values),
                MISSING if size == 1 else f"{text_of(verdict, 'choice')}{more}",
                limit_word(verdict),
            ]
        )
    statistic = (
        "Time of a step, or of a training to its target; ±: half of its 95% interval (several launches)."
    )
    cells = [list(verdict.cells) for verdict in verdicts]
    return without_empty_columns(
        Table("The fastest of each workload", statistic, headings, rows, cells=cells)
    )


def limit_word(verdict: Finding) -> str:
    values, losses = verdict.values, verdict.values["losses"]
    if values["is_too_noisy"] or (losses and not losses["is_resolved"]):
        return "unknown (noise)"
    if losses:
        called = {"all but the exchange": "not exchange"}
        called |= {"computation": "small batch"} if losses["is_strong"] else {}
        return called.get(losses["largest"], str(losses["largest"]))
    if values["limit"] is None:
        return MISSING
    return LIMITS.get(values["limit"].kind, values["limit"].kind.replace("_", " "))
