"""`scaling.comm_hook`: an aggregator in a plain DDP loop, on two ranks; on GPUs where there are two."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import destroy_process_group
from torch.nn.parallel import DistributedDataParallel

import scaling
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.codecs import one_bit
from scaling.errors import StudyError
from tests.ranks import as_rank, refusal
from tests.training.small import batch, flat, perceptron

AGGREGATORS = {
    **{"one_bit": {}, "power_sgd": {"approximation_size": 2, "minimum_compression": 1.0}},
    **{"top_k": {}, "bf16": {}},
}
NO_HOOKS = ("power_sgd_hook", "host_serial", "one_bit_adam")
EXACT, STEPS, SAVED_AFTER = 2, 8, 5
BUCKET_MB = 0.004

pytestmark = pytest.mark.processes


def network(device):
    return perceptron(12, 40, 40, 6).to(device)


def loss_of(model, rank, number, device):
    inputs, targets = (values.to(device) for values in batch(rank, number))
    return nn.functional.cross_entropy(model(inputs), targets)


def train(model, rank, numbers, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in numbers:
        optimizer.zero_grad()
        loss_of(model, rank, number, device).backward()
        optimizer.step()


def wrapped(group, device, **settings):
    settings = {"process_group": group.data, "bucket_cap_mb": BUCKET_MB, **settings}
    return DistributedDataParallel(network(device), **settings)


def hooked(name, model, **parameters):
    """The state of a hook that the model has now."""
    state, hook = scaling.comm_hook(name, model, **parameters)
    model.register_comm_hook(state, hook)
    return state


def by_hand(name, group, buckets, device):
    """The same training with the aggregator called on each bucket's gradients, without DDP."""
    model = network(device)
    named = dict(model.named_parameters())
    aggregator = create(name, AGGREGATORS[name])
    layouts = [BucketLayout.of([(each, tuple(named[each].shape)) for each in names]) for names in buckets]
    states = [aggregator.start(layout, group, torch.float32, device) for layout in layouts]
    for number in range(STEPS):
        model.zero_grad()
        loss_of(model, group.rank, number, device).backward()
        for names, state in zip(buckets, states, strict=True):
            mean = torch.cat([named[each].grad.flatten() for each in names])
            if number < EXACT:
                mean /= group.world_size
                group.all_reduce(mean)
            else:
                mean = aggregator.aggregate(state, mean)
            for each, part in zip(names, mean.split([named[one].numel() for one in names]), strict=True):
                named[each].data.add_(part.view_as(named[each]), alpha=-0.05)
    return model


def seen_of(name, group, device):
    """How far from the aggregator's own training; and what a resumed one gives."""
    model = wrapped(group, device)
    state = hooked(name, model, **AGGREGATORS[name])
    train(model, group.rank, range(SAVED_AFTER), device)
    saved = {key: value.clone() for key, value in model.module.state_dict().items()}
    residuals = state.state_dict()
    train(model, group.rank, range(SAVED_AFTER, STEPS), device)
    state.check()
    buckets = [list(layout.names) for _, layout in sorted(state._buckets._layouts.items())]
    ends = []
    for loaded in (residuals, None):
        resumed = wrapped(group, device, gradient_as_bucket_view=True, bucket_cap_mb=25)
        resumed.module.load_state_dict(saved)
        other, hook = scaling.comm_hook(name, resumed, **AGGREGATORS[name])
        if loaded:
            other.load_state_dict(loaded)
        resumed.register_comm_hook(other, hook)
        train(resumed, group.rank, range(EXACT + 1), device)
        ends.append(flat(resumed))
    return {
        "apart": (flat(model) - flat(by_hand(name, group, buckets, device))).abs().max().item(),
        "buckets": len(buckets),
        "resumes": not torch.equal(*ends),
        "graphs": state._buckets.has_graphs,
        "keeps": any(tensors for tensors in residuals.values()),
    }


def broken(group, device):
    """One rank's codec loses its residual: the check finds it."""
    model, decode = wrapped(group, device), one_bit.decode
    if group.rank == 1:
        one_bit.decode = lambda *given: 1.5 * decode(*given)
    state = hooked("one_bit", model, kernels="torch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, group.rank, range(STEPS), device)
    one_bit.decode = decode
    ours = [str(each.message) for each in caught if "scaling.comm_hook" in str(each.message)]
    return {"fallback": state.fallback, "num_warnings": len(ours)}


def closed(group, device):
    """Whether a hook has dropped its graphs when its process group ends, while the model stays."""
    own = dist.new_group(backend=dist.get_backend(group.data))
    model = DistributedDataParallel(network(device), process_group=own)
    state = hooked("one_bit", model)
    train(model, group.rank, range(STEPS), device)
    had = state._buckets.has_graphs
    destroy_process_group(own)
    return had == (device.type == "cuda") and not state._buckets.has_graphs and state.is_closed


def refused(name, model):
    return refusal(StudyError, lambda: scaling.comm_hook(name, model))


def seen_by(workers):
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= workers.info.world_size
    device = torch.device("cuda", workers.info.rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    group = workers.group(device)
    return {
        **{name: seen_of(name, group, device) for name in AGGREGATORS},
        "broken": broken(group, device),
        "closed": closed(group, device),
        "refused": {name: refused(name, wrapped(group, device)) for name in NO_HOOKS},
        "no ddp": refused("one_bit", network(device)),
    }


@pytest.mark.parametrize("name", AGGREGATORS)
class TestAggregator:
    def test_trains_bit_for_bit_as_the_aggregator_called_by_hand(self, ranks, name):
        assert [rank[name]["apart"] for rank in ranks] == [0.0, 0.0]
        assert all(rank[name]["buckets"] > 1 for rank in ranks)
        assert [rank[name]["graphs"] for rank in ranks] == [torch.cuda.device_count() >= 2] * 2

    def test_what_is_withheld_is_saved_and_taken_over_by_other_buckets(self, ranks, name):
        assert [(rank[name]["keeps"], rank[name]["resumes"]) for rank in ranks] == [(name != "bf16",) * 2] * 2


def test_an_exchange_that_breaks_its_law_ends_in_exact_means(ranks):
    for rank in ranks:
        assert "times as far off as its law allows" in rank["broken"]["fallback"]
        assert rank["broken"]["num_warnings"] == 1


@pytest.mark.parametrize("name", NO_HOOKS)
def test_what_is_no_hook_is_refused(ranks, name):
    assert "use one_bit, power_sgd" in ranks[0]["refused"][name]


def test_a_process_group_ends_after_the_graphs_of_its_hooks(ranks):
    assert [rank["closed"] for rank in ranks] == [True, True]


def test_a_model_without_ddp_is_refused(ranks):
    assert "give the DDP model itself" in ranks[0]["no ddp"]


if __name__ == "__main__":
    as_rank(seen_by)
