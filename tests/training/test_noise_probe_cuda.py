"""On two GPUs over NCCL: looks in captured and overlapped steps see what those in the eager step see."""

from unittest import mock

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.training import noise_probe
from scaling.training.captured import CapturedStep
from scaling.training.gradients import AS_THEY_ARE
from scaling.training.noise_probe import FORMS, NoiseProbe
from tests.ranks import as_rank
from tests.training.small import OPTIMIZERS, batch, eager, flat, layered, overlapped, perceptron

NUM_STEPS = 6
SETTINGS = OPTIMIZERS["adamw"]
LOOKS = {
    **{f"{way}, ring": [1, 3, 5] for way in ("captured", "captured by layers", "overlapped")},
    **{"captured, all_reduce": [1, 3, 5], "captured, one_bit": [1, 3, 5]},
    "overlapped, all_reduce": [3],  # DDP hides its exchange: seldom
}

pytestmark = [pytest.mark.gpu(2), pytest.mark.processes]


def trained(key, group, device, is_probed=True):
    """Losses, norms by form, and the last parameters."""
    way, name = key.split(", ")
    chosen = (perceptron(12, 40, 6).to(device), create(name), SETTINGS, group)
    example = batch(group.rank, 99, device)
    if way == "overlapped":
        step = overlapped(*chosen, example, bucket_mb=0.001)
    elif way == "captured by layers":
        step = CapturedStep(layered(*chosen, bucket_mb=0.001, capturable=True), *example, group)
    else:
        step = eager(*chosen, capturable=way == "captured")
        step = CapturedStep(step, *example, group) if way == "captured" else step
    probe = NoiseProbe(step, create(name), AS_THEY_ARE, group, len(example[0]))
    take = probe.take if is_probed else lambda number, index, *given: step(*given)
    losses = [take(number, number, *batch(group.rank, number, device)).item() for number in range(NUM_STEPS)]
    return {"losses": losses, **probe.finish_epoch(), "parameters": flat(step.replica.module).tolist()}


def seen_by(workers):
    device = torch.device("cuda", workers.info.rank)
    torch.cuda.set_device(device)
    group, seen = workers.group(device), {}
    each = dict.fromkeys(noise_probe.STRIDE, 1)
    with mock.patch.dict(noise_probe.STRIDE, each), mock.patch.dict(noise_probe.STRIDE_CAPTURED, each):
        for key in LOOKS:
            kinds = {"looked at": key, "eager": f"eager, {key.split(', ')[1]}"}
            seen[key] = {kind: trained(of, group, device) for kind, of in kinds.items()}
            seen[key]["not looked at"] = trained(key, group, device, is_probed=False)
    return seen


@pytest.mark.parametrize("key", LOOKS)
def test_norms_and_training_are_those_of_the_eager_step(ranks, key):
    for rank in ranks:
        looked_at, expected, plain = rank[key].values()
        for form in FORMS:
            places = [expected[form]["steps"].index(number) for number in LOOKS[key]]
            assert looked_at[form]["steps"] == LOOKS[key]
            for norm in ("small", "big"):
                wanted = [expected[form][norm][place] for place in places]
                assert looked_at[form][norm] == pytest.approx(wanted, rel=1e-3)
        assert looked_at["losses"] == pytest.approx(plain["losses"], rel=1e-4)
        assert looked_at["losses"] == pytest.approx(expected["losses"], rel=1e-3)
        assert looked_at["parameters"] == ranks[0][key]["looked at"]["parameters"]


if __name__ == "__main__":
    as_rank(seen_by)
