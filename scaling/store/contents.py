"""What the files of a folder besides runs and samples may hold."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from scaling.store.schemas import Count, Finite, OpenModel, Positive, Seconds, Size, optional, required


class _NamedModel(OpenModel):
    name: str


class PartModel(OpenModel):
    """A part of a study that was run, as far as reports read it."""

    kind: str = "iteration"
    experiment: _NamedModel | None = None
    devices: list[str] | None = None

    @model_validator(mode="after")
    def _complete(self) -> PartModel:
        if self.kind == "device" and (self.experiment is None or self.devices is None):
            raise ValueError("lacks experiment or devices, which every part of kind device has")
        return self


class StudyModel(OpenModel):
    """study.yaml of a results folder. It is data here; a study file that is to be run has its own schema."""

    name: str
    parts: list[PartModel] = []
    notes: list[str] | None = None


_GpuNameModel = optional((str, "name"), (Count, "memory_bytes"))
EnvironmentModel = optional(
    (str, "hostname"),
    (Count, "memory_bytes"),
    (optional((str, "model"), (Size, "usable_cores cores")), "cpu"),
    (list[_GpuNameModel], "gpus"),  # type: ignore[valid-type]
    (optional((str, "commit"), (bool, "dirty")), "git"),
    (dict[str, Any], "versions"),
    (dict[str, str], "settings variables"),
)


class TermModel(OpenModel):
    name: str
    kind: str | None = None
    seconds: Seconds
    choice: str | None = None


_PredictionKeys: Any = optional(
    (str, "cell_id model dataset aggregator step topology busiest_link reason input_placement"),
    (str, "transport way memory_format augmentation"),  # `way`: the name of `transport` before
    (Size, "world_size"),
    (Count, "local_batch global_batch"),
    (Positive, "bucket_mb iteration_s"),
    (bool, "peer_access tf32"),
    (Seconds, "iteration_s_low iteration_s_high compute_s exchange_s exposed_comm_s"),
    (list[TermModel], "terms"),
    (list[str], "notes"),
)


class PredictionModel(_PredictionKeys):  # type: ignore[misc]
    """A cell's prediction; one that was not possible has a reason in place of times."""

    @model_validator(mode="after")
    def _complete(self) -> PredictionModel:
        known = (self.iteration_s_low, self.iteration_s_high, self.model, self.aggregator, self.step)
        if self.cell_id and self.iteration_s and None in (*known, self.topology, self.world_size):
            raise ValueError(
                "has iteration_s, but lacks its interval, model, aggregator, step, topology or world_size"
            )
        return self


class PredictionsModel(OpenModel):
    predictions: list[PredictionModel]


_SheetKeys: Any = required(
    (Size, "world_size"),
    (Count, "num_steps metered_bytes exact_bytes"),
    (str, "trained_on measured_on"),
    (Finite, "first_error_ratio sum_error_ratio replicas_off_by"),
    (bool, "replicas_agree"),
    (Finite | None, "encode_bytes_per_s decode_bytes_per_s break_even_bytes_per_s"),
)


class SheetModel(_SheetKeys):  # type: ignore[misc]
    """sheets/<aggregator>.json (`scaling.conformance.fidelity.Sheet`)."""

    host_us_per_bucket: Finite | None = None


_CellTimesModel = optional((str, "cell_id"), (Seconds, "setup_s warmup_s unprofiled_s profiled_s other_s"))

LaunchTimesModel = optional(
    (Size, "world_size"),
    (Count, "repeat"),
    (Seconds, "start_up_s total_s"),
    (list[_CellTimesModel], "cells"),  # type: ignore[valid-type]
)
