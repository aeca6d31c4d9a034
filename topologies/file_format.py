"""What may stand in a machine file: devices and links of a few types, each figure with its source.

A `MachineFile` describes one node in full. A `DerivedFile` names a machine and says what is different:
several nodes on a network, devices and links added to each, another peer access. Here is the form of each
value; what they mean together (ids that exist, routes) is checked in topologies/build.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

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
PeerAccess = Literal["all", "none"] | list[list[str]]


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
    """What devices of a type have in common; see `topologies.model.Device`."""

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
    """What links of a type have in common; see `topologies.model.Link`."""

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
    """One device: its id, its type, and of a GPU the board that it shares."""

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
    """What connects the nodes; see `topologies.model.Network`."""

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
    """One node."""

    devices: list[DeviceEntry] = Field(min_length=1)
    peer_access: PeerAccess = "none"


class DerivedFile(_Named):
    """Another machine, `nodes` times, with what is different."""

    machine: str
    nodes: Count = 1
    network: NetworkEntry | None = None
    peer_access: PeerAccess | None = None


NESTED: dict[str, type[BaseModel]] = {
    "device_types": DeviceType,
    "link_types": LinkType,
    "devices": DeviceEntry,
    "links": LinkEntry,
    "network": NetworkEntry,
    "message_latency_s": MessageLatency,
}
"""The form of what stands under a key, for messages about unknown keys."""
