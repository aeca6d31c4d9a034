"""The variables of a study, one row each: what a cell is measured with, and which other cells must share it.

Tables, titles, baselines, control arms, comparisons, recommendations, exports, predictions and pruning read
this table. A new variable is one row here, the key of a study file (`scaling.study.schema`), the field of a
cell (`scaling.study.cell`), and what it does. A cell has a value by the name of its axis, a row of the
summary by the axis's column, as text where it is none for a table; of models, data sets and aggregators the
label.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntFlag, auto
from functools import cache
from typing import Any, Literal

TRAINED = ("iteration", "convergence")  # kinds of cells that have a model

EVERY_KIND = (*TRAINED, "transfer", "device")

Question = Literal[
    "speedup", "aggregator", "compression", "memory", "time_to_target", "devices", "transfer", "buckets"
]  # what a study asks, and its report answers first

ATTACHED = "attached"  # kind of runs of a user's own script; tables have them as iteration


LARGEST_COUNT = 2**62
MOST_SIZES = 6  # of buckets that a table shows
LARGEST_WORLD = 1_000_000  # ranks, threads, nodes and repeats: more than any machine has


class Shared(IntFlag):
    """With which cells a cell shares the value, besides the batch that the world size does not change."""

    NONE = 0
    BASELINE = auto()  # one worker without exchange, to which speedup and efficiency refer
    CONTROL = auto()  # its control arm: the same step without exchange
    TIMED = auto()  # the timed cell that predicts how long a training takes
    CURVE = auto()  # those that say what a rank computes in a step, by its local batch
    GROUP = auto()  # those of the same table and figure
    FOLDERS = auto()  # the same timing in another folder; trainings share all that is not recorded only
    WORKLOAD = auto()  # those of which one is recommended
    RIVALS = auto()  # those that need not be measured where this one is certain to be faster
    UPDATE = auto()
    """The training that says whether the accuracy stays: momentum repeats late what a gradient left out."""
    ALL = BASELINE | CONTROL | TIMED | CURVE | GROUP | FOLDERS | WORKLOAD | RIVALS


class Role(IntFlag):
    """What the variable is to the person who reads a table."""

    NONE = 0
    GIVEN = auto()  # in every title
    CHOSEN = auto()  # a setting: named where cells of a workload differ in it
    RECIPE = auto()  # how is trained: named where trainings differ in it
    REPETITION = auto()  # the same once more; trainings of all its values are one result
    RECORDED = auto()  # where it ran: recorded with a run, no part of what the cell is
    DESCRIBED = auto()  # in the one line that describes a cell, where it is set
    PREDICTED = auto()  # in the row of a prediction


@dataclass(frozen=True)
class Axis:
    name: str  # its key in a cell
    dtype: str = "string"  # pandas' type of its column
    default: Any = None  # what it was in folders that lack it, and what None stands for
    holds: str = "scalar"  # what a cell has of it: a "scalar" of its type, a "mapping", or "numbers"
    least: float = 0  # least, most: of a number
    most: float = LARGEST_COUNT
    later: bool = False  # not in the identity while it has its default: it came after older cells
    was: str = ""  # its key in the identity, where that was its name before
    kinds: tuple[str, ...] = TRAINED  # of cells that always have it; in others it may be missing
    shared: Shared = Shared.ALL  # with which cells
    role: Role = Role.RECIPE  # to the reader
    label: str = ""  # a format of its value, for titles and names; empty: its name and the value
    short: str = ""  # the same where there is little room; empty: as `label`
    column: str | None = None  # of summary.csv; None: the name; empty: it has none
    labelled: bool = False  # whether tables have the label that the cell has as `<name>_label`
    show: Callable[[Any], Any] = lambda value: value  # from a cell's value to that of the column
    older: Callable[[Mapping[str, Any]], Any] | None = None  # the default, where other values decide it

    @property
    def key(self) -> str:
        """Its column in rows; empty where it has none."""
        return self.name if self.column is None else self.column

    def value(self, cell: Mapping[str, Any]) -> Any:
        """What the cell has, with the default for None and where the cell is older than the axis."""
        value = cell.get(self.name)
        if value is None and self.older is not None:
            return self.older(cell)
        return self.default if value is None else value

    def shown(self, cell: Mapping[str, Any]) -> Any:
        """The same as in the cell's row; of an aggregator that is an optimizer itself, as that trains."""
        cell = as_trained(cell)
        if kind_of_table(cell) not in self.kinds:
            return cell.get(self.name)
        if self.older is not None:
            return self.show(self.value(cell))
        if self.labelled:
            return str(cell.get(f"{self.name}_label") or cell[self.name])
        return self.show(cell.get(self.name, self.default))

    def is_in_identity(self, value: Any) -> bool:
        """Whether a cell with that value has it in its identity."""
        return not self.later or value not in (None, self.default)

    @property
    def default_shown(self) -> Any:
        return self.show(self.default)

    def text(self, value: Any, *, short: bool = False) -> str:
        """A value of its column, in words."""
        words = self.name.replace("_", " ")
        if value is None:
            return f"no {words}"
        label = (short and self.short) or self.label or f"{words} {{}}"
        return label.format(("off", "on")[value] if isinstance(value, bool) else value)


OWN_ADAM = "one_bit_adam"  # Adam, or AdamW, itself; sgd, the optimizer of its cells, applies its step
_ITS_DEFAULTS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


def as_trained(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cell with the optimizer that it trains by: its exact counterpart has the same one."""
    if cell.get("aggregator") != OWN_ADAM or cell.get("optimizer") not in (None, "sgd"):
        return cell
    given = {**_ITS_DEFAULTS, **(cell.get("aggregator_parameters") or {})}
    name = "adamw" if cell.get("weight_decay") else "adam"
    return {**cell, "optimizer": name, **{key: given[key] for key in _ITS_DEFAULTS}}


def _sizes(sizes_mb: Any) -> str | None:
    """`1 25` as one field of a table; of many the first ones, and how many there are."""
    if not sizes_mb:
        return None
    shown = " ".join(f"{size:.3g}" for size in sizes_mb[:MOST_SIZES])
    return shown if len(sizes_mb) <= MOST_SIZES else f"{shown} ... ({len(sizes_mb)})"


_ALL, _NONE = Shared.ALL, Shared.NONE
BYTE_MB = 2.0**-20
_EXTENT = Shared.CONTROL | Shared.TIMED | Shared.FOLDERS
_RATE = Shared.BASELINE | Shared.CONTROL | Shared.GROUP
_INPUT = Shared.BASELINE | Shared.CONTROL | Shared.FOLDERS
_OF_DDP = Shared.TIMED | Shared.FOLDERS
_TRAINING = ("convergence",)
_SET = Role.CHOSEN | Role.DESCRIBED | Role.PREDICTED
_RECIPE = Role.RECIPE | Role.DESCRIBED | Role.PREDICTED
_LOCAL = Shared.TIMED | Shared.FOLDERS | Shared.RIVALS | Shared.UPDATE

# A row a line: the order is that of the columns.
# fmt: off
AXES: list[Axis] = [
    Axis("study", kinds=EVERY_KIND, shared=_NONE, role=Role.RECORDED),
    Axis("kind", kinds=EVERY_KIND, show=lambda kind: "iteration" if kind == ATTACHED else kind,
         shared=_ALL & ~(Shared.TIMED | Shared.CURVE), role=Role.GIVEN),
    Axis("model", role=Role.GIVEN, labelled=True),
    Axis("model_parameters", holds="mapping", role=Role.GIVEN, column=""),
    Axis("dataset", shared=_ALL & ~Shared.CURVE, role=Role.GIVEN, labelled=True),
    Axis("dataset_parameters", holds="mapping", shared=_ALL & ~Shared.CURVE, role=Role.GIVEN, column=""),
    Axis("aggregator", shared=Shared.TIMED | Shared.FOLDERS, role=Role.NONE, labelled=True),
    Axis("aggregator_parameters", holds="mapping", shared=Shared.TIMED | Shared.FOLDERS, role=Role.NONE,
         column=""),
    Axis("step", shared=_ALL & ~(Shared.WORKLOAD | Shared.RIVALS), role=Role.CHOSEN | Role.PREDICTED,
         label="{} step", short="{}"),
    Axis("launcher", kinds=EVERY_KIND, shared=_NONE, role=Role.RECORDED),
    Axis("device", kinds=EVERY_KIND, role=Role.GIVEN | Role.PREDICTED),
    Axis("scaling", shared=_ALL & ~Shared.CURVE, role=Role.GIVEN | Role.PREDICTED),
    Axis("world_size", "Int64", least=1, most=LARGEST_WORLD, kinds=EVERY_KIND, shared=_EXTENT,
         role=Role.PREDICTED),
    Axis("local_batch", "Int64", least=1, shared=_EXTENT, role=Role.PREDICTED),
    Axis("global_batch", "Int64", least=1, shared=_EXTENT | Shared.UPDATE, role=Role.PREDICTED),
    Axis("bucket_mb", "Float64", least=BYTE_MB, shared=Shared.TIMED | Shared.FOLDERS, role=_SET,
         label="buckets of {:g} MiB", short="{:g} MiB"),
    Axis("input_placement", default="device", shared=_INPUT | Shared.CURVE, role=_SET,
         label="input {}", short="{}"),
    Axis("loader_workers", "Int64", most=LARGEST_WORLD, shared=_INPUT, role=Role.CHOSEN,
         label="{} loader workers", short="{} loaders"),
    Axis("threads", "Int64", least=1, most=LARGEST_WORLD, kinds=EVERY_KIND,
         shared=_INPUT | Shared.TIMED | Shared.GROUP, role=Role.CHOSEN, label="{} threads a worker"),
    Axis("peer_access", "boolean", kinds=EVERY_KIND, shared=_EXTENT | Shared.GROUP,
         role=Role.CHOSEN | Role.PREDICTED),
    Axis("num_nodes", "Int64", least=1, most=LARGEST_WORLD, kinds=EVERY_KIND, shared=_NONE,
         role=Role.RECORDED | Role.CHOSEN, label="on {} nodes"),
    Axis("workers_per_gpu", "Int64", least=1, most=LARGEST_WORLD, later=True,
         shared=Shared.TIMED | Shared.FOLDERS, role=Role.DESCRIBED, label="{} workers a GPU"),
    Axis("tf32", "boolean", default=False, column="", role=Role.PREDICTED),
    Axis("precision", default="float32", later=True, label="{}",
         role=_RECIPE, older=lambda cell: "tf32" if cell.get("tf32") else "float32"),
    Axis("wire", default="float32", later=True, shared=Shared.TIMED | Shared.FOLDERS, role=_SET,
         show=lambda name: name or "float32", label="{} on the wire", short="{} wire"),
    Axis("memory_format", default="contiguous", later=True, shared=_ALL & ~Shared.WORKLOAD, role=_SET,
         show=lambda name: name or "contiguous", label="{}"),
    Axis("compile", "boolean", default=False, later=True, shared=_ALL & ~Shared.WORKLOAD, role=_SET,
         label="compile {}"),
    Axis("checkpoint_activations", "boolean", default=False, later=True, shared=_ALL & ~Shared.WORKLOAD,
         role=_SET, label="activation checkpointing {}"),
    Axis("accumulate", "Int64", least=1, most=LARGEST_WORLD, default=1, later=True,
         shared=_ALL & ~Shared.WORKLOAD, role=_SET, label="micro-batches {}"),
    Axis("first_bucket_mb", "Float64", least=BYTE_MB, later=True, shared=_OF_DDP, role=Role.CHOSEN,
         label="first bucket of {:g} MiB"),
    Axis("bucket_sizes_mb", holds="numbers", later=True, shared=_OF_DDP, role=_SET, show=_sizes,
         label="buckets of {} MiB", short="{} MiB"),
    Axis("find_unused_parameters", "boolean", later=True, shared=_OF_DDP, role=Role.CHOSEN),
    Axis("static_graph", "boolean", default=False, later=True, shared=_OF_DDP, role=Role.CHOSEN),
    Axis("gradient_as_bucket_view", "boolean", default=False, later=True, shared=_OF_DDP, role=Role.CHOSEN),
    Axis("sync_every", "Int64", least=1, most=LARGEST_WORLD, default=1, later=True, shared=_LOCAL, role=_SET,
         label="sync_every {}"),
    Axis("outer_update", later=True, shared=_LOCAL, role=_SET, label="{} of local updates", short="{}"),
    Axis("outer_momentum", "float64", later=True, shared=_LOCAL, label="outer momentum {:g}"),
    Axis("outer_learning_rate", "float64", later=True, shared=_LOCAL, label="outer rate {:g}"),
    Axis("optimizer", default="sgd", later=True, shared=_ALL | Shared.UPDATE, label="{}", role=_RECIPE),
    Axis("beta1", "float64", later=True, shared=_RATE, label="beta1 {:g}"),
    Axis("beta2", "float64", later=True, shared=_RATE, label="beta2 {:g}"),
    Axis("epsilon", "float64", later=True, shared=_RATE, label="epsilon {:g}"),
    Axis("clip_norm", "float64", later=True, label="clipped to {:g}", role=Role.RECIPE | Role.DESCRIBED),
    Axis("clip_gradient", later=True, label="{} gradient clipped"),
    Axis("learning_rate", "float64", shared=_RATE, label="learning rate {:g}"),
    Axis("momentum", "float64", shared=_RATE | Shared.UPDATE, label="momentum {:g}"),
    Axis("weight_decay", "float64", shared=_RATE, label="weight decay {:g}"),
    Axis("nesterov", "boolean", shared=_RATE | Shared.TIMED | Shared.UPDATE),
    Axis("learning_rate_rule", default="fixed", later=True, kinds=_TRAINING, shared=_RATE, label="{} rule"),
    Axis("base_batch", "Int64", least=1, later=True, kinds=_TRAINING, shared=_RATE, label="base batch {:g}"),
    Axis("warmup_epochs", "float64", default=0.0, later=True, kinds=_TRAINING, shared=_RATE,
         label="warm-up {:g}"),
    Axis("schedule", default="constant", later=True, kinds=_TRAINING, shared=_RATE, label="{} schedule"),
    Axis("milestones", holds="numbers", later=True, kinds=_TRAINING, shared=_RATE,
         show=lambda epochs: " ".join(f"{epoch:g}" for epoch in epochs) if epochs else None),
    Axis("gamma", "float64", later=True, kinds=_TRAINING, shared=_RATE, label="gamma {:g}"),
    Axis("target_bits_per_byte", "float64", later=True, kinds=_TRAINING, shared=_NONE,
         label="to {:g} bits a byte"),
    Axis("augmentation", default="none", later=True, kinds=_TRAINING, shared=_ALL & ~Shared.TIMED,
         role=_RECIPE),
    Axis("batch_norm", default="replica", later=True),
    Axis("arm", later=True, shared=Shared.FOLDERS, role=Role.CHOSEN, label="arm {}", short="{}"),
    Axis("seed", "Int64", shared=_RATE, role=Role.REPETITION | Role.DESCRIBED),
    Axis("aa_replicate", "Int64", most=1, was="twin", default=0, shared=Shared.FOLDERS, role=Role.DESCRIBED,
         label="A/A pair"),
]
# fmt: on

DEFAULTS: dict[str, Any] = {row.name: row.default for row in AXES}  # of keys and of fields of a cell


def workers(world_size: int, unit: str = "worker") -> str:
    """`1 worker`, `4 workers`, `4 GPUs`."""
    return f"{world_size} {unit}{'' if world_size == 1 else 's'}"


def kind_of_table(cell: Mapping[str, Any]) -> str:
    """The cell's kind; `iteration` for a user's own kind that trains a model."""
    kind = str(cell["kind"])
    return "iteration" if kind not in EVERY_KIND and cell.get("model") else kind


def axis(name: str) -> Axis:
    return next(row for row in AXES if row.name == name)


def column_types() -> dict[str, str]:
    """The columns of what was chosen, in their order, with their types."""
    return {row.key: row.dtype for row in AXES if row.key}


def columns(shared: Shared = Shared.NONE, role: Role = Role.NONE) -> list[str]:
    """The columns of the axes that are shared so, or have one of those roles."""
    return [row.key for row in with_columns(shared, role)]


@cache
def with_columns(shared: Shared = Shared.NONE, role: Role = Role.NONE) -> tuple[Axis, ...]:
    return tuple(row for row in AXES if row.key and (row.shared & shared or row.role & role))


def columns_without(role: Role) -> list[str]:
    """The columns of the axes that have none of those roles; without RECORDED: all that a cell is."""
    roles = int(role)
    return [row.key for row in AXES if row.key and not int(row.role) & roles]


def agree(shared: Shared, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two cells have the same values of all that cells which stand so to each other share."""
    first, second = as_trained(first), as_trained(second)
    return all(row.value(first) == row.value(second) for row in _sharing(shared))


def shared_key(shared: Shared, cell: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """Equal for cells that `agree`; to look for them in a group in place of all cells."""
    cell = as_trained(cell)
    values = (row.value(cell) for row in _sharing(shared))
    return tuple(value if isinstance(value, str | int | float | None) else str(value) for value in values)


def _sharing(shared: Shared) -> Iterator[Axis]:
    wanted = int(shared)
    return (row for row in AXES if int(row.shared) & wanted)


def key_of(axes: Iterable[Axis], cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for cells that have the same values of those axes; labels where there are any."""
    return tuple(row.shown(cell) if row.labelled else row.value(cell) for row in axes)


def fixed_batch(cell: Mapping[str, Any]) -> int:
    """The batch that the world size does not change: the worker's under weak scaling, else the global one."""
    return int(cell["local_batch"] if cell["scaling"] == "weak" else cell["global_batch"])
