"""Compute capabilities from names as machine files and drivers have them."""

import pytest

from topologies.gpus import MODELS, compute_capability
from topologies.schema import load, shipped


@pytest.mark.parametrize(("name", "capability"), [
    ("NVIDIA GK210, half a Tesla K80", 3.7), ("Tesla P40", 6.1), ("NVIDIA TITAN V", 7.0),
    ("Quadro RTX 6000", 7.5), ("NVIDIA RTX 6000 Ada Generation", 8.9), ("NVIDIA RTX A6000", 8.6),
    ("NVIDIA GeForce RTX 4090", 8.9), ("NVIDIA H100 80GB HBM3", 9.0),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12.0),
    ("AMD Instinct MI300X", None), ("", None),
])  # fmt: skip
def test_names_of_drivers_tell_the_compute_capability(name, capability):
    assert compute_capability(name) == capability


def test_every_known_product_has_its_own():
    for model in MODELS:
        expected = int(model.architecture[3:]) / 10 if model.vendor == "NVIDIA" else None
        assert compute_capability(f"{model.vendor} {model.name}") == expected


def test_gpus_of_shipped_machines_are_known():
    gpus = {gpu.name for name in shipped() for gpu in load(name).machine.of_kind("gpu")}
    assert [name for name in gpus if compute_capability(name) is None] == []
