"""Name -> experiment: built-ins, entry points of other packages, or `module:Class`. It needs no torch."""

from __future__ import annotations

from scaling.registry import Registry

BUILT_IN = {
    "small-networks": "scaling.device_studies.small_networks:SmallNetworks",
    "cpu-threads": "scaling.device_studies.cpu_threads:CpuThreads",
    "batch-sizes": "scaling.device_studies.batch_sizes:BatchSizes",
    "lstm-fused": "scaling.device_studies.lstm_fused:LstmFused",
    "surface-regression": "scaling.device_studies.surface_regression:SurfaceRegression",
    "kernel-choices": "scaling.device_studies.kernel_choices:KernelChoices",
}

EXPERIMENTS = Registry("experiment", "scaling.experiments", BUILT_IN)
