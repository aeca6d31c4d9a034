"""From cells to what predictions are made of: the stages of their aggregation, and measured folders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from scaling.aggregators.base import Aggregator
from scaling.aggregators.registry import create as create_aggregator
from scaling.bucket import ITEMSIZES, BucketLayout, layouts_of_text
from scaling.collectives.plan import CodecWork, Stage, Update
from scaling.errors import ScalingError, ScheduleError, StudyError
from scaling.prediction.overlap_fit import ddp_buckets
from scaling.prediction.predict import Prediction, Predictor
from scaling.prediction.strategy import Strategy
from scaling.store.upgrades import kernels_then
from scaling.study.cell import AvailableMachine, Cell
from scaling.study.parts import TrainingPart
from scaling.study.places import sizes_of
from scaling.study.rank.process_state import kept_state
from scaling.study.resolve import resolve
from scaling.study.schema import Study
from scaling.training.replica import Replica
from scaling.workloads.base import DataShape, Model
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape
from topologies.errors import TopologyError
from topologies.model import Topology

FLOAT32_BYTES = 4
WIRE_BYTES = {"bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class NotPredicted:
    cell: Mapping[str, Any]
    reason: str


def strategy_of(cell: Mapping[str, Any], tensor_shapes: str = "") -> Strategy:
    """What a cell's aggregation consists of, by its recorded `tensor_shapes` or its model. StudyError."""
    world_size = int(cell["world_size"])
    if not tensor_shapes and "model_parameters" not in cell:
        raise StudyError(
            f"how large {cell['model_label']} is was not recorded; import its table again, with --parameters"
        )
    layouts = _recorded_layouts(tensor_shapes) if tensor_shapes else layouts_of_model(cell)
    parameters = _parameters(cell)
    aggregator = create_aggregator(cell["aggregator"], parameters)
    buckets, updates, sizes = [], [], []
    by_tensor = aggregator.ddp_path() == "by_tensor"
    # Tensor by tensor the host's step comes as soon as a gradient is there; else after all of them.
    at_once = ("host",) if by_tensor and cell["step"] == "overlapped" else ()
    for dtype, layout in layouts.items():
        itemsize, parts, of_parts = ITEMSIZES[dtype], [layout], [aggregator]
        sizes_mb = cell.get("bucket_sizes_mb") or ()
        if not sizes_mb and (bucket_mb := cell.get("bucket_mb")) is not None:
            sizes_mb = (cell.get("first_bucket_mb") or bucket_mb, bucket_mb)
        if cell["step"] == "overlapped" and sizes_mb:
            parts = ddp_buckets(layout, sizes_mb, itemsize)
            of_parts *= len(parts)
        elif cell["step"] == "overlapped" and by_tensor:
            parts, of_parts = ddp_buckets(layout, [0.0]), aggregator.by_tensor(layout, world_size)[::-1]
        for part, of_part in zip(parts, of_parts, strict=True):
            with own_errors(f"aggregator {of_part.name!r} cannot be predicted: its `stages`"):
                stated = of_part.stages(part, world_size)
            stages = [_as_in_cell(stage, cell, itemsize, aggregator) for stage in stated]
            buckets.append(tuple(s for s in stages if not isinstance(s, Update) or s.site in at_once))
            updates += [s for s in stages if isinstance(s, Update) and s.site != "replica"]
            sizes.append(part)
    return Strategy(
        cell,
        tuple(buckets),
        tuple(size.num_elements for size in sizes),
        tuple(len(size.shapes) for size in sizes),
        tuple(updates),
        sum(size.num_elements * ITEMSIZES[dtype] for dtype, size in layouts.items()) // FLOAT32_BYTES,
        parameters.get("kernels") == "torch",
        bool(cell.get("wire")) and world_size > 1,
        0 if cell.get("input_placement", "device") == "device" else _sample_bytes(*_model_and_data(cell)),
        aggregator.needs_one_host(),
    )


def _parameters(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The cell's; kernels are torch's on the CPU, and of one that was recorded before codecs had others."""
    recorded = dict(cell["aggregator_parameters"])
    known = create_aggregator(cell["aggregator"], recorded).parameters()
    by_torch = known.get("kernels") == "auto" and cell["device"] == "cpu"
    return {**known, **({"kernels": "torch"} if by_torch else {}), **kernels_then(recorded, known)}


def _as_in_cell(stage: Stage, cell: Mapping[str, Any], itemsize: int, aggregator: Aggregator[Any]) -> Stage:
    """A stage stated for float32, for gradients of so many bytes an element: `wire` casts what several ranks
    exchange, codes stay as they are, and a division in host memory has the cell's threads."""
    if isinstance(stage, CodecWork) and stage.where == "host" and stage.name == "divide":
        stage = replace(stage, num_threads=int(cell.get("threads") or 1))
    is_update = isinstance(stage, Update)
    if cell.get("wire") and int(cell["world_size"]) > 1 and not is_update:
        itemsize = WIRE_BYTES.get(str(cell["wire"]), itemsize)
    factor = itemsize / FLOAT32_BYTES
    if factor == 1 or (aggregator.lossy and not is_update):
        return stage
    if isinstance(stage, CodecWork):
        return replace(stage, num_bytes=stage.num_bytes * factor)
    return replace(stage, bytes_per_element=stage.bytes_per_element * factor)


@contextmanager
def own_errors(what: str) -> Iterator[None]:
    """Turns whatever a user's own code raises into an error that says what raised it."""
    try:
        yield
    except (ScalingError, TopologyError):
        raise
    except Exception as error:
        raise StudyError(f"{what} raises {type(error).__name__}: {error}") from error


def _recorded_layouts(tensor_shapes: str) -> dict[str, BucketLayout]:
    try:
        return layouts_of_text(tensor_shapes)
    except ValueError as error:
        raise StudyError(f"tensor_shapes of its run are damaged: {error}; measure it again") from error


def layouts_of_model(cell: Mapping[str, Any]) -> dict[str, BucketLayout]:
    return _layouts(*_model_and_data(cell))


def _model_and_data(cell: Mapping[str, Any]) -> tuple[str, ...]:
    parameters = (json.dumps(cell[f"{what}_parameters"]) for what in ("model", "dataset"))
    return (cell["model"], cell["dataset"], *parameters)


def _created(
    model: str, dataset: str, model_parameters: str, dataset_parameters: str
) -> tuple[Model, DataShape]:
    network = create_model(model, json.loads(model_parameters))
    return network, resolve_shape(network, create_dataset(dataset, json.loads(dataset_parameters)))


@cache
def _sample_bytes(*model_and_data: str) -> int:
    """Of an input as it goes to the GPU: float32, or tokens in 64 bits."""
    _, shape = _created(*model_and_data)
    return (8 if shape.tokens else 4) * math.prod(shape.input_shape)


@cache
def _layouts(*model_and_data: str) -> dict[str, BucketLayout]:
    network, shape = _created(*model_and_data)
    with own_errors(f"model {model_and_data[0]!r}"), kept_state(), torch.device("meta"), _NothingDrawn():
        module = build_module(network, shape)
    return Replica(module).layouts


class _NothingDrawn(TorchFunctionMode):
    """Leaves tensors without memory as they are; to draw their values, torch first imports its compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        tensor = args[0] if args else keywords.get("tensor")
        name, where = (getattr(func, what, "") for what in ("__name__", "__module__"))
        draws = name in ("normal_", "uniform_") or where == "torch.nn.init"
        if isinstance(tensor, torch.Tensor) and tensor.is_meta and draws:
            return tensor
        return func(*args, **keywords)


def cells_on(
    study: Study, topology: Topology, world_sizes: Sequence[int] | None
) -> tuple[list[Cell], list[NotPredicted]]:
    """The study's cells as on that machine, but for transfers and A/A pairs, and what cannot be."""
    gpus = topology.machine.of_kind("gpu")
    cores = sum(device.cores or 0 for device in topology.machine.of_kind("cpu")) or 1
    machine = AvailableMachine(len(gpus), cores, topology.num_nodes)
    cells: dict[str, Cell] = {}
    left_out: list[NotPredicted] = []
    for part in study.parts:
        if not isinstance(part, TrainingPart):
            continue
        for workload in part.workloads:
            for size in world_sizes or sizes_of(part, len(gpus) * topology.num_nodes):
                changed = {"workloads": [workload], "world_sizes": [size], "missing_devices": "error"}
                if hasattr(part, "noise_pair"):
                    changed["noise_pair"] = False
                changed_study = study.model_copy(update={"parts": (part.model_copy(update=changed),)})
                try:
                    topology.ranks(size)  # raises where it has no places for so many
                    resolved_cells = resolve(changed_study, machine).trained
                except (StudyError, TopologyError) as error:
                    (first, *_) = getattr(workload, "first_available", [workload])
                    where = {"world_size": size, "workload": first.model.name}
                    resolved_cells, refused = _one_by_one(changed_study, machine, where, error)
                    left_out += refused
                cells |= {cell.id: cell for cell in resolved_cells}
    return list(cells.values()), left_out


def _one_by_one(
    study: Study, machine: AvailableMachine, where: Mapping[str, Any], error: Exception
) -> tuple[list[Cell], list[NotPredicted]]:
    """The cells of the aggregators that can be; `error` is what all of them together raised."""
    (part,) = study.parts
    assert isinstance(part, TrainingPart)
    cells: list[Cell] = []
    refused: list[NotPredicted] = []
    for aggregator in part.aggregators if isinstance(error, StudyError) else ():
        alone = study.model_copy(update={"parts": (part.model_copy(update={"aggregators": [aggregator]}),)})
        try:
            cells += resolve(alone, machine).trained
        except StudyError as own:
            refused.append(NotPredicted({**where, "aggregator": aggregator.name}, str(own)))
    return (cells, refused) if cells else ([], [NotPredicted(where, str(error))])


def predict_cells(
    cells: Iterable[Cell | Mapping[str, Any]], predictor: Predictor, tensor_shapes: str = ""
) -> tuple[list[Prediction], list[NotPredicted]]:
    """Every cell that can be predicted; the others with the reason."""
    predicted, left_out = [], []
    for cell in cells:
        values = cell.to_dict() if isinstance(cell, Cell) else cell
        try:
            predicted.append(predictor.predict(strategy_of(values, tensor_shapes)))
        except (StudyError, ScheduleError, TopologyError) as error:
            left_out.append(NotPredicted(values, str(error)))
    return predicted, left_out
