"""What holds for every preset: the mean arrives, replicas stay equal, what is sent is stated."""

import inspect

import pytest
import torch

from scaling import conformance
from scaling.aggregators.registry import BUILT_IN, create

PRESETS = [name for name, target in BUILT_IN.items() if ".presets." in target]
WORLD_SIZES = (1, 2, 3, 4, 7)
VARIANTS = [
    ("caffe", {"gpus_per_board": 3}),
    ("cntk", {"threshold": "mean"}),
    ("cntk_32bit", {"transport": "device"}),
    ("mxnet_local", {"num_threads": 1}),
    *(("tf_spec", {"spec": spec}) for spec in ("xring", "psgpu", "nccl", "collective#2:2:xring")),
    ("tf_spec", {"spec": "pscpu#3:100:psgpu:1k:nccl/rechd"}),
]


def by_label(name, parameters):
    return pytest.param(create(name, parameters), id=create(name, parameters).label())


OTHERS = [by_label(*variant) for variant in VARIANTS]


def test_all_systems_are_there():
    assert PRESETS == [
        "caffe", "caffe_nccl", "cntk", "cntk_32bit", "mxnet_device", "mxnet_local", "mxnet_tree",
        "tensorflow", "tf_replicated", "tf_spec", "torch_dpt", "torch_cpu",
    ]  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
class TestDocuments:
    def test_module_names_its_source_and_what_differs(self, name):
        text = inspect.getmodule(type(create(name))).__doc__
        assert f"`{name}`" in text
        for needed in ("Reference", "Differences", "Bytes", "Error", "mean", "sum"):
            assert needed in text

    def test_site_is_the_class_attribute_for_small_tensors(self, name, network):
        aggregator = create(name)
        assert aggregator.site(network) == aggregator.update_site


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("aggregator", [by_label(name, {}) for name in PRESETS] + OTHERS)
def test_contract_holds_on_tensors_of_a_network(aggregator, world_size, network):
    """Tensors of every tier; the aggregators of the contract's own suite see smaller ones."""
    conformance.check(aggregator, conformance.Case(world_size, torch.float32, network.shapes, ("normal",)))


@pytest.mark.parametrize("aggregator", [other for other in OTHERS if not other.values[0].lossy])
def test_other_parameters_keep_the_contract(aggregator):
    conformance.check_drawn(aggregator, world_size=3, num_examples=3)
