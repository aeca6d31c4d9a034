"""The data sets and initial models that a rank keeps from one cell to the next."""

from __future__ import annotations

import copy
import gc
import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from scaling.measure.matrix_rate import MatrixRate, matrix_rate
from scaling.process_group import Group
from scaling.study.cell import TIMING_BATCHES, AnyCell, Cell
from scaling.training.compute import model_flops
from scaling.workloads.base import DataShape, DataSplits, Split
from scaling.workloads.registry import build_module, create_dataset, create_model, resolve_shape

MAX_LOADED = 4  # data sets on the device, and initial models on the host, between cells


class Loaded:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._data: dict[str, DataSplits] = {}
        self._initial: dict[str, tuple[nn.Module, Tensor]] = {}
        self._current: str | None = None
        self._flops: dict[str, int | None] = {}
        self._rates: dict[tuple[str, int], MatrixRate | None] = {}

    def data(self, cell: Cell) -> DataSplits:
        """The cell's data set, on the device if it fits there."""
        dataset, shape = create_dataset(cell.dataset, cell.dataset_parameters), self._shape(cell)
        needed = TIMING_BATCHES * cell.global_batch
        key = f"{dataset} {shape} {(needed, cell.seed) if not dataset.real else ''}"
        self._current = key
        if key not in self._data:
            if len(self._data) >= MAX_LOADED:
                self._data.clear()
            self._data[key] = self._placed(dataset.load(shape, needed, cell.seed))
        return self._data[key]

    def begin_cell(self) -> None:
        """From now on the data that another cell has asked for are others'."""
        self._current = None

    def device_bytes(self, *, of_others: bool = False) -> int:
        """What the data sets take on the device; only those that this cell has not asked for."""
        return sum(
            values.nbytes
            for key, splits in self._data.items()
            if not (of_others and key == self._current)
            for split in (splits.train, splits.test)
            for values in (split.inputs, split.targets)
            if values.device == self._device
        )

    def _placed(self, loaded: DataSplits) -> DataSplits:
        """The data set on the device, without this worker's others if need be, or in host memory."""
        for _ in range(2):
            try:
                train, test = self._on_device(loaded.train), self._on_device(loaded.test)
                return DataSplits(train, test, loaded.checksums)
            except torch.OutOfMemoryError:
                self._data.clear()
            gc.collect()  # what the failure kept
            torch.cuda.empty_cache()
        return replace(loaded, in_host_memory=True)

    def _on_device(self, split: Split) -> Split:
        return Split(split.inputs.to(self._device), split.targets.to(self._device))

    def module(self, cell: Cell) -> nn.Module:
        """The model with its initial weights, the same on every rank, on the device; a copy."""
        torch.manual_seed(cell.seed)  # of GPUs too, whose numbers no weight is made of
        module, random_state = self._initial_of(cell)
        torch.set_rng_state(random_state)
        return _copied(module, self._device)

    def model_flops(self, cell: Cell) -> int | None:
        """Those of a step of the cell's local batch (`scaling.training.compute`), counted once."""
        key = f"{self._model_key(cell)} {cell.local_batch}"
        if key not in self._flops:
            train, loss = self.data(cell).train, create_model(cell.model, cell.model_parameters).loss
            batch = (values[: cell.local_batch] for values in (train.inputs, train.targets))
            module, _ = self._initial_of(cell)
            self._flops[key] = model_flops(_copied(module, torch.device("meta")), loss, *batch)
        return self._flops[key]

    def matrix_rate(self, cell: Cell, group: Group) -> MatrixRate | None:
        """This rank's, in the cell's precision: measured once a launch. Collective."""
        precision = cell.precision or ("tf32" if cell.tf32 else "float32")
        key = precision, cell.threads
        if key not in self._rates:
            group.barrier()
            self._rates[key] = matrix_rate(precision, self._device)
        return self._rates[key]

    def tokens_per_sample(self, cell: Cell) -> int | None:
        """Of the data that the model gets; None where they are no tokens."""
        shape = self._shape(cell)
        return math.prod(shape.input_shape) if shape.tokens else None

    def forget(self, cell: AnyCell) -> None:
        """Drops the cell's initial model, which is built again when it is asked for."""
        if isinstance(cell, Cell):
            self._initial.pop(self._model_key(cell), None)

    def _initial_of(self, cell: Cell) -> tuple[nn.Module, Tensor]:
        """The model in host memory, and the random state after its weights were drawn."""
        if (key := self._model_key(cell)) not in self._initial:
            if len(self._initial) >= MAX_LOADED:
                self._initial.pop(next(iter(self._initial)))
            torch.manual_seed(cell.seed)
            model = create_model(cell.model, cell.model_parameters)
            module = build_module(model, self._shape(cell))
            self._initial[key] = (module, torch.get_rng_state())
        return self._initial[key]

    def _model_key(self, cell: Cell) -> str:
        return f"{cell.model} {cell.model_parameters} {self._shape(cell)} {cell.seed}"

    def _shape(self, cell: Cell) -> DataShape:
        dataset = create_dataset(cell.dataset, cell.dataset_parameters)
        return resolve_shape(create_model(cell.model, cell.model_parameters), dataset)


def _copied(module: nn.Module, device: torch.device) -> nn.Module:
    """A copy on another device; what is large is copied there alone, and not in host memory before."""
    copies: dict[int, Tensor] = {}
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter:
            values = parameter.detach().to(device, copy=True)
            copies[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
    for buffer in module.buffers():
        if type(buffer) is Tensor:
            copies[id(buffer)] = buffer.detach().to(device, copy=True)
    return copy.deepcopy(module, copies).to(device)
