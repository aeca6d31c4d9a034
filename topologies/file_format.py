"""What may stand in a machine file: devices and links of a few types, each figure with its source.

A `MachineFile` describes one node in full. A `DerivedFile` names a machine and says what is different:
several nodes on a network, devices and links added to each, another peer access. Here is the form of each
value; what they mean together (ids that exist, routes) is checked in topologies/build.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from scaling.files.documents import DocumentError, from_yaml, line_of
from topologies.errors import TopologyError
from topologies.machine import MATRIX_FIGURES
from topologies.model import DeviceKind


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
"""A finite number; `8e9`, which YAML takes for a text, is one too."""

Bandwidth = Annotated[Number, Field(gt=0)]
Latency = Annotated[Number, Field(ge=0)]
Count = Annotated[int, Field(gt=0, strict=True)]
# Resources are named `node0/<id>>`, and pairs in messages `a -> b`.
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PeerAccess = Literal["all", "none", "unknown"] | list[list[str] | Literal["unknown"]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _WithSource(_Strict):
    """Figures and where they come from: one text for all of them, or one for each."""

    FIGURES: ClassVar[tuple[str, ...]] = ()

    source: dict[str, str]

    @field_validator("source", mode="before")
    @classmethod
    def _as_mapping(cls, value: Any) -> Any:
        texts = value if isinstance(value, Mapping) else {"": value}
        for key, text in texts.items():
            if key not in ("", *cls.FIGURES):
                raise ValueError(f"{key!r} is no figure; allowed: {', '.join(cls.FIGURES)}")
            if not isinstance(text, str) or not text.strip():
                raise ValueError("say where the figure comes from: a datasheet, a paper, 'measured on ...', "
                                 "'assumption: ...'")  # fmt: skip
        return {key: " ".join(text.split()) for key, text in texts.items()}

    @model_validator(mode="after")
    def _every_figure_has_one(self) -> _WithSource:
        given = [name for name in self.FIGURES if getattr(self, name) is not None]
        missing = [name for name in given if not {name, ""} & set(self.source)]
        if missing:
            raise ValueError(f"source of {' and '.join(missing)} is missing; every figure needs one")
        idle = [name for name in self.source if name and name not in given]
        if idle:
            raise ValueError(f"source names {' and '.join(idle)}, but the figure is not given")
        return self

    def sources(self) -> dict[str, str]:
        """Figure -> where it comes from; "" stands for the whole where there is no figure."""
        given = [name for name in self.FIGURES if getattr(self, name) is not None]
        return {name: self.source.get(name) or self.source[""] for name in given} or dict(self.source)


class DeviceType(_WithSource):
    FIGURES = ("cores", "reduce_bytes_per_s", "bandwidth_bytes_per_s", *MATRIX_FIGURES)
    OF_KIND: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cores": ("cpu",),
        "reduce_bytes_per_s": ("gpu", "cpu"),
        "bandwidth_bytes_per_s": ("gpu", "host_memory"),
        **dict.fromkeys(MATRIX_FIGURES, ("gpu", "cpu")),
        "gpudirect": ("nic",),
    }

    kind: DeviceKind
    name: str = ""
    cores: Count | None = None
    reduce_bytes_per_s: Bandwidth | None = None
    bandwidth_bytes_per_s: Bandwidth | None = None
    float32_flops_per_s: Bandwidth | None = None
    tf32_flops_per_s: Bandwidth | None = None
    bf16_flops_per_s: Bandwidth | None = None
    fp16_flops_per_s: Bandwidth | None = None
    gpudirect: bool = False

    @model_validator(mode="after")
    def _figures_belong_to_the_kind(self) -> DeviceType:
        for figure, kinds in self.OF_KIND.items():
            if getattr(self, figure) not in (None, False) and self.kind not in kinds:
                raise ValueError(f"{figure} belongs to kind {' or '.join(kinds)}, not to {self.kind}")
        return self


class LinkType(_WithSource):
    FIGURES = ("bandwidth_bytes_per_s", "back_bytes_per_s", "latency_s")

    kind: str = Field(min_length=1)
    bandwidth_bytes_per_s: Bandwidth
    back_bytes_per_s: Bandwidth | None = None
    latency_s: Latency
    duplex: bool = True

    @model_validator(mode="after")
    def _directions(self) -> LinkType:
        if self.back_bytes_per_s is not None and not self.duplex:
            raise ValueError("back_bytes_per_s belongs to duplex links; directions that share one have none")
        return self


class DeviceEntry(_Strict):
    id: Id
    type: str
    board: str | None = None


class LinkEntry(_Strict):
    """One link: `count` equal cables between two devices."""

    id: Id | None = None
    type: str
    between: Annotated[list[str], Field(min_length=2, max_length=2)]
    count: Count = 1


class NetworkEntry(_WithSource):
    FIGURES = ("bandwidth_bytes_per_s", "latency_s")

    kind: str = Field(min_length=1)
    bandwidth_bytes_per_s: Bandwidth
    latency_s: Latency


class MessageLatency(_WithSource):
    """Software's latency of a message in seconds, by the kind of its path."""

    FIGURES = ("peer", "staged", "host", "network")

    peer: Latency | None = None
    staged: Latency | None = None
    host: Latency | None = None
    network: Latency | None = None


class _Named(_Strict):
    name: Id
    description: str = ""
    device_types: dict[Id, DeviceType] = {}
    link_types: dict[Id, LinkType] = {}
    devices: list[DeviceEntry] = []
    links: list[LinkEntry] = []
    message_latency_s: MessageLatency | None = None


class MachineFile(_Named):
    devices: list[DeviceEntry] = Field(min_length=1)
    peer_access: PeerAccess = "none"


class DerivedFile(_Named):
    """Another machine, `nodes` times, with what is different."""

    machine: str
    nodes: Count = 1
    network: NetworkEntry | None = None
    peer_access: PeerAccess | None = None


NESTED: dict[str, type[BaseModel]] = {
    **{"device_types": DeviceType, "link_types": LinkType, "devices": DeviceEntry, "links": LinkEntry},
    **{"network": NetworkEntry, "message_latency_s": MessageLatency},
}
"""The form of what stands under a key, for messages about unknown keys."""


AnyFile = TypeVar("AnyFile", bound=BaseModel)
MOST_PROBLEMS = 10  # that a message names


def parse(text: str, source: str) -> MachineFile | DerivedFile:
    """A machine file of the right form; TopologyError names `source` and every key that is wrong."""
    try:
        raw = from_yaml(text)
    except DocumentError as error:
        raise TopologyError(f"{source}: {error}") from None
    if not isinstance(raw, Mapping):
        raise TopologyError(f"{source}: a machine file is a mapping of keys, as in `name: my-machine`")
    if "machine" in raw:
        return of_form(DerivedFile, raw, source, text)
    return of_form(MachineFile, raw, source, text)


def of_form(cls: type[AnyFile], raw: Mapping[str, Any], source: str, text: str = "") -> AnyFile:
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        problems: list[dict[str, Any]] = [dict(problem) for problem in error.errors(include_url=False)]
        explained = dict.fromkeys((line_of(text, list(one["loc"])), _explain(one, cls)) for one in problems)
        lines = [f"{source}: {what}{'' if line is None else f' (line {line})'}" for line, what in explained]
        if len(lines) > MOST_PROBLEMS:
            lines[MOST_PROBLEMS:] = [f"{source}: {len(lines) - MOST_PROBLEMS} more are wrong"]
        raise TopologyError("\n".join(lines)) from None


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """`unknown key 'nmae'; did you mean 'name'? (allowed: ...)`."""
    known = list(allowed)
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (allowed: {', '.join(known) or 'none'})"


def _explain(problem: dict[str, Any], cls: type[BaseModel]) -> str:
    location = problem["loc"]
    key = ".".join(str(part) for part in location if part != "[key]")
    if problem["type"] == "extra_forbidden":
        name = str(location[-1])
        if len(location) == 1 and name in DerivedFile.model_fields:
            return f"key {name!r} belongs to a file that names a 'machine'; leave it out, or name one"
        fields = (cls if len(location) == 1 else NESTED[str(location[0])]).model_fields
        where = f" under {key.rpartition('.')[0]!r}" if len(location) > 1 else ""
        return unknown("key", name, fields) + where
    if problem["type"] == "missing":
        hint = "; say where its figures come from" if location[-1] == "source" else ""
        return f"key {key!r} is missing{hint}"
    if location and location[0] == "peer_access":
        return (
            f"peer_access is {problem['input']!r}; allowed: all, none, unknown, or lists of GPUs: "
            "[[gpu0, gpu1], ...], with unknown last where nothing is known of the others"
        )
    message = problem["msg"].removeprefix("Value error, ")
    given = f" is {problem['input']!r}" if not isinstance(problem["input"], Mapping | list) else ""
    return f"{key}{given}: {message[0].lower()}{message[1:]}"
