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


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", PRESETS)
class TestStep:
    def test_owners_hold_the_mean_and_together_the_bucket(self, name, world_size, network, step, mean_of):
        aggregator = create(name)
        outcomes = step(aggregator, world_size, network)
        expected = mean_of(world_size, network)
        covered = torch.zeros(network.num_elements, dtype=torch.int64)
        for outcome in outcomes:
            for start, stop in outcome.owned:
                covered[start:stop] += 1
                if not aggregator.lossy:
                    mean = outcome.mean[start:stop].double()
                    assert torch.allclose(mean, expected[start:stop], rtol=0, atol=2e-6)
        times = world_size if aggregator.site(network) == "replica" else 1
        assert covered.eq(times).all()

    def test_parameters_of_the_owners_arrive_everywhere(self, name, world_size, network, step, mean_of):
        outcomes = step(create(name), world_size, network)
        if outcomes[0].parameters is None:
            return
        for outcome in outcomes:
            assert torch.equal(outcome.parameters, outcomes[0].parameters)
            expected = mean_of(world_size, network)
            assert torch.allclose(outcome.parameters.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("aggregator", [by_label(*variant) for variant in VARIANTS])
def test_mean_arrives_with_other_parameters(aggregator, world_size, network, step, mean_of):
    outcomes = step(aggregator, world_size, network)
    for outcome in outcomes:
        for start, stop in outcome.owned:
            mean, expected = outcome.mean[start:stop], mean_of(world_size, network)[start:stop]
            assert aggregator.lossy or torch.allclose(mean.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", conformance.DTYPES, ids=str)
@pytest.mark.parametrize("aggregator", [by_label(*variant) for variant in VARIANTS])
def test_other_parameters_keep_the_contract(aggregator, dtype, world_size):
    for size in (0, 10, 1027):
        conformance.check(aggregator, world_size, size, dtype)
