"""One self-contained page: no request, figures inline, one small script. All text is escaped.

From what the report says to the raw samples that it is made of.

Every row of a table, every bar and every point belongs to cells, whose ids stand in the row; the samples of a
cell are runs/<cell>/<repeat>/rank<r>.jsonl, or rows of samples.csv.gz. `PATHS` says, for each kind of claim,
which lines of these files are taken and what is done with them. A test follows each of them by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaling.report.content import Content, name_in
from scaling.report.figures.parts import DRAWN_OTHERS, SHOW_OTHERS
from scaling.report.figures.svg import for_page, page_styles
from scaling.report.tables import Section
from scaling.report.text import TEMPLATES, environment, title_parts
from scaling.report.verdict_text import names_of


@dataclass(frozen=True)
class EvidencePath:
    claim: str
    columns: str
    samples: str
    rule: str


PATHS = (
    EvidencePath(
        "time of a step",
        "summary.csv: iteration_s, iteration_s_low, iteration_s_high",
        "start_s and step_s of lines with warmup false and without profiled true (older folders: split), of "
        "every rank; block_iterations of run.json",
        "wall clock over steps on the slowest rank, without pauses between blocks (the mean of steps where "
        "there is no start_s: iteration_form); the repeats' geometric mean; the interval from the repeats' "
        "logarithms (of one repeat: from its steps). typical_iteration_s: the median over all steps",
    ),
    EvidencePath(
        "speedup, efficiency",
        "summary.csv: samples_per_s, tokens_per_s, speedup, parallel_efficiency",
        "the same, of this cell and of the one with one worker and the aggregator none",
        "global batch / iteration_s (times tokens_per_sample of run.json), its ratio to the one worker's; "
        "over the workers",
    ),
    EvidencePath(
        "where a step's time goes",
        "summary.csv: <part>_s, profiled_iteration_s, profiling_overhead_s; budget.csv: each step",
        "spans of lines with profiled true (older folders: split, or <phase>_s of every measured line)",
        "mean over the middle half of the profiled steps, of the rank that the others wait for",
    ),
    EvidencePath(
        "stragglers",
        "summary.csv: skew_s; budget.csv: arrived_after_first_s",
        "start_s and the first communicate span of lines with profiled true",
        "start_s + the span's start, less the first rank's at the same step; the median of the last rank's",
    ),
    EvidencePath(
        "noise floor",
        "summary.csv: noise_floor",
        "as the time of a step, launch by launch, of the cell and its A/A replicate (an A/A pair)",
        "the relative difference of their means over launches; of several pairs the root mean square",
    ),
    EvidencePath(
        "bytes moved",
        "summary.csv: wire_bytes_per_rank",
        "summary.wire_bytes_per_rank of run.json",
        "the largest over ranks and repeats; metered by the group of processes, no sample: what is sent to "
        "others, and what is copied to host memory and back",
    ),
    EvidencePath(
        "loss and accuracy",
        "summary.csv: train_loss, final_test_accuracy; convergence.csv: each epoch",
        "train_loss, test_accuracy of the last epoch's line of rank 0",
        "the median over repeats",
    ),
    EvidencePath(
        "time to target",
        "summary.csv: seconds_to_target, target_state",
        "train_s of every rank and test_accuracy of rank 0, line by line",
        "the largest train_s over ranks at the first epoch that reaches the target accuracy; the median "
        "over repeats, if all reach it",
    ),
    EvidencePath(
        "predicted time to target",
        "summary.csv: predicted_s_to_target, prediction_lacks",
        "step_losses of rank 0 up to the target; step_s of the timed cell that takes the same step",
        "their number x iteration_s",
    ),
    EvidencePath(
        "transfers",
        "transfers.csv",
        "sample lines of rank 0: seconds of each operation, size and ranks, as long as on the slowest rank",
        "the median; of ranks or equal pairs the median of theirs",
    ),
    EvidencePath(
        "bytes on links, utilisation (simulated)",
        "links.csv: bytes, utilisation",
        "summary.num_parameters and summary.wire_bytes_per_rank of run.json; topology.yaml; iteration_s",
        "the aggregator's schedule on the topology, if it sends what was metered; bytes / bandwidth / "
        "iteration_s",
    ),
    EvidencePath(
        "predicted time of a step (simulated)",
        "predictions.json",
        "none: written before the launch that measures the cell",
        "scaling predict; the error is predicted / iteration_s - 1",
    ),
    EvidencePath(
        "recommended setting",
        "summary.csv: the columns of its objective, with their intervals; noise_floor",
        "those of the cells that are named",
        "scaling recommend: the lowest, if it is apart from all others",
    ),
)


TEMPLATE = "report.html.j2"
MOST_NAMED = 4  # so many of several workloads are named below the title


def render_page(content: Content) -> str:
    templates = environment(TEMPLATES, autoescape=True)
    templates.filters |= {"name": name_in, "first_sentence": first_sentence}
    figures = [figure for section in content.sections for figure in section.figures]
    texts = {figure.name: figure.svg.read_text(encoding="utf-8") for figure in figures}
    labels = {figure.name: f"{figure.name.partition('-')[0]}: {figure.title}" for figure in figures}
    return templates.get_template(TEMPLATE).render(
        content=content,
        rest=[rest for rest in map(_of_no_group, content.sections) if rest.figures or rest.tables],
        subtitle=_subtitle(content),
        svgs={name: for_page(text, name, labels[name]) for name, text in texts.items()},
        figure_styles=page_styles(texts.values()),
        paths=PATHS,
    )


def first_sentence(text: str) -> tuple[str, str]:
    first, stop, others = text.partition(". ")
    return first + stop.rstrip(), others


def _subtitle(content: Content) -> str:
    """What was measured, and on what: the workload, or of several each by what distinguishes it."""
    titles = [title_parts(verdict.values["workload"]) for verdict in content.verdicts]
    shared = [part for part in titles[0][1:] if all(part in title for title in titles)] if titles else []
    first = content.blocks[0].name if content.blocks else ""
    given = [verdict.values["workload"] for verdict in content.verdicts]
    models = {f"{one['model']} on {one['dataset']}" for one in given}
    if len(titles) > 1 and len(models) == 1:
        first = f"{models.pop()}, {len(titles)} answers"
    elif len(titles) > 1:
        names = names_of(content.verdicts)
        named = (
            names if len(names) <= MOST_NAMED else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
        )
        first = f"{len(names)} workloads: {'; '.join(named)}"
    return " · ".join(filter(None, [first, ", ".join(shared), content.machine]))


def _of_no_group(section: Section) -> Section:
    figures = [figure for figure in section.figures if not figure.group]
    tables = [table for table in section.tables if not table.group]
    return replace(section, figures=figures, tables=tables, remarks=[])


OPEN_SECTIONS = ("speedup", "training", "devices")  # their tables stand open; others unfold


def render_markdown(content: Content) -> str:
    """The text, in GitHub's Markdown; figures are SVG files in figures/, in its folder."""
    templates = environment(TEMPLATES, autoescape=False)
    templates.filters |= {"md": _escaped, "row": _row}
    # A figure's caption where the page's buttons are not.
    templates.filters["in_file"] = lambda caption: caption.replace(SHOW_OTHERS, DRAWN_OTHERS)
    template = templates.get_template("report.md.j2")
    return template.render(content=content, open_sections=OPEN_SECTIONS).rstrip() + "\n"


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(value).replace('|', chr(92) + '|') for value in values)} |"


def _escaped(text: str) -> str:
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), ("*", r"\*"), ("[", r"\["), ("]", r"\]")):
        text = text.replace(mark, written)
    return " ".join(text.split())
