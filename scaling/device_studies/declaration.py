"""What the report of a device study shows, tabulates and answers, as data; `scaling.report.device` reads it.

Texts are templates: `{width}` is the study's parameter or the variable of the cells in question, `{on}` their
device, `{times}` how many times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scaling.registry import Registry


@dataclass(frozen=True)
class Setting:
    """The value that the study gave a parameter; one of them, where it is a list."""

    name: str


Where = Mapping[str, Any]
"""Variable, `device`, `threads` or fact -> its value; one of a tuple of values; or a `Setting`."""


@dataclass(frozen=True, eq=False)
class Variant:
    """A line of a figure, or the columns of a table: cells with a name of their own."""

    name: str
    where: Where


DEVICES = (Variant("CPU", {"device": "cpu"}), Variant("GPU", {"device": "cuda"}))
ARMS: tuple[Variant, ...] = ()
"""CPU with each number of threads, GPU eager and captured, as far as there are cells of them."""


@dataclass(frozen=True)
class Panels:
    """A panel, or one for each value of `by`: a phase's time over `x`, variable or fact, times `scale`."""

    x: str
    label: str = ""
    where: Where = field(default_factory=dict)
    by: tuple[str, ...] = ()
    title: str = ""
    phase: str = "step"
    scale: float = 1.0


@dataclass(frozen=True)
class Lines:
    """A figure of times, `scale` a second, over variables on logarithmic axes."""

    name: str
    caption: str
    title: str  # follows the study's name
    panels: tuple[Panels, ...]
    lines: tuple[Variant, ...] | str = ARMS  # a text: one for each value of that variable
    label: str = "ms a step"
    scale: float = 1e3
    per: str = ""  # a variable or fact that is divided by the time: a rate
    over_first: bool = False  # the time at the line's first point over that at each
    over: Where | None = None  # likewise the least time of these cells, `named` variables being the same
    columns: int = 2


@dataclass(frozen=True)
class Bars:
    """A figure of times in ms: a panel for each value of `by`, a bar for each of `bar`, coloured by `colour`.
    A white line in a bar is the time of the phase `mark`."""

    name: str
    caption: str
    title: str
    by: tuple[str, ...]
    panel: str
    bar: str
    colour: str
    where: Where
    mark: str = ""


Kind = Literal["time", "seconds", "interval", "both", "per_s", "number", "error", "fact", "over_first"]


@dataclass(frozen=True)
class Show:
    """A column of a table. `kind`: `time` of the phase in ms, or in `seconds`; its `interval`, or `both`;
    `per_s`: `name` over it; `number`, `error` or `fact`: the fact `name`; `over_first`: as `Lines` has it,
    along `name`."""

    header: str
    kind: Kind = "time"
    name: str = ""
    phase: str = "step"
    scale: float = 1.0


STEP_TIME = (Show("ms a step"), Show("95% interval, ms", "interval"), Show("samples/s", "per_s", "samples"))


@dataclass(frozen=True)
class Rows:
    """A table with a row for each value of `by`, and columns for each of `variants`; none: of the only cell.
    With `ratio` the last column is the CPU's least time over the GPU's."""

    title: str
    by: tuple[str, ...]
    show: tuple[Show, ...] = STEP_TIME
    where: Where = field(default_factory=dict)
    variants: tuple[Variant, ...] | None = None
    ratio: bool = False
    below: str = ""


@dataclass(frozen=True)
class FastestRows:
    """A table with a row for each value of `by`: with which value of `x` a step takes least time, and how
    many times as long with the slowest; from where on it takes less than on the first of the `lines`."""

    title: str
    x: str
    by: tuple[str, ...]
    lines: str = ""
    statistic: str | None = None


@dataclass(frozen=True)
class BreakEven:
    """From which value of `x` on the `first` take less time than the fastest of `than`, for each of `by`;
    with `threads` all threads against the fewest, said where there is no GPU; not GPU against CPU."""

    text: str
    x: str
    unit: str = ""
    where: Where = field(default_factory=dict)
    by: str = ""
    first: tuple[Variant, ...] = ARMS
    than: Where = field(default_factory=lambda: {"device": "cpu"})
    threads: bool = False


@dataclass(frozen=True)
class Enough:
    """The least value of `x` with which a sample takes at most `ratio` times its least time, by `by`."""

    text: str
    x: str
    by: str
    ratio: float
    bracket: str  # behind a value: `{per_s}` samples, or `{times}` as long with the least of `x`
    short: str  # for each device: `{enough}`, `{times}`, `{least}`, `{most}`; `before` all of them
    before: str = ""
    is_bound: bool = False  # whether the largest value of all is said to be a lower bound
    ahead: str = ""  # before how many times as long a sample takes on the CPU; "": not said


@dataclass(frozen=True)
class Fastest:
    """Which `choice` takes least time, by device and `by`, `at` names these; `short` says all."""

    text: str
    choice: str
    by: tuple[str, ...]
    at: str
    where: Where
    short: str = ""


@dataclass(frozen=True)
class Times:
    """How many times as long each of `of` takes as the fastest of `over` at the same `at`, by device."""

    text: str
    over: Where
    of: Mapping[str, Where]  # behind the number -> which cells; each value of `vary` apart
    at: tuple[str, ...]
    each: str = ""  # a clause for each value of `at`; "": their range
    phases: Mapping[str, str] = field(default_factory=lambda: {"step": ""})  # -> first word
    vary: str = ""
    turned: bool = False  # how many times as long `over` takes as each of `of`
    error: str = ""  # a fact whose largest value is said too
    only: Callable[[Any], bool] = lambda _: True  # which cells of `of`
    after: str = ""


@dataclass(frozen=True)
class Noted:
    """A sentence for each cell that is so."""

    text: str
    only: Callable[[Any], bool]


Figure = Lines | Bars
Finding = BreakEven | Enough | Fastest | Times | Noted


@dataclass(frozen=True)
class Report:
    """What the report of a device study says. `order`: a variable -> its values as they are to stand; a
    `Setting`: those of the parameter."""

    question: str
    named: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    tables: tuple[Rows | FastestRows, ...] = ()
    answer: tuple[Finding, ...] = ()  # to the question
    findings: tuple[Finding, ...] = ()  # what was found besides
    labels: Mapping[Any, str] = field(default_factory=dict)  # a variable, or a value -> what it is called
    order: Mapping[str, tuple[Any, ...] | Setting] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ARMS  # names of cells
    own: str = ""  # the module of `scaling.report.device` with code of this study alone


BUILT_IN = {
    "small-networks": "scaling.device_studies.small_networks:SmallNetworks",
    "cpu-threads": "scaling.device_studies.cpu_threads:CpuThreads",
    "batch-sizes": "scaling.device_studies.batch_sizes:BatchSizes",
    "lstm-fused": "scaling.device_studies.lstm_fused:LstmFused",
    "surface-regression": "scaling.device_studies.surface_regression:SurfaceRegression",
    "kernel-choices": "scaling.device_studies.kernel_choices:KernelChoices",
}

EXPERIMENTS = Registry("experiment", "scaling.experiments", BUILT_IN)
