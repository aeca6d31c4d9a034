"""Predictions as text: what a table says of itself."""

import pytest

from scaling.prediction.rows import NOTHING_MEASURED, text_table

NET = {"model": "net", "world_size": 4}
PREDICTED = {**NET, "aggregator": "ring", "iteration_s": 0.01}
PREDICTED |= {"iteration_s_low": 0.009, "iteration_s_high": 0.011}
EXCHANGE_ALONE = {**NET, "aggregator": "tree", "exposed_comm_s": 0.002}
NOT_PREDICTED = {**NET, "aggregator": "star", "reason": "it has no schedule"}


@pytest.mark.parametrize(("rows", "is_told"), [
    ([], False), ([PREDICTED], False), ([EXCHANGE_ALONE], True), ([EXCHANGE_ALONE, NOT_PREDICTED], True),
    ([PREDICTED, EXCHANGE_ALONE], False),
    ([NOT_PREDICTED, EXCHANGE_ALONE, PREDICTED], False),
])  # fmt: skip
def test_only_a_table_without_any_iteration_says_that_nothing_was_measured(rows, is_told):
    assert (NOTHING_MEASURED in " ".join(text_table(rows).split())) == is_told


def test_batches_and_inputs_are_told():
    fed = {"scaling": "weak", "local_batch": 1024, "global_batch": 4096}
    text = text_table([{**PREDICTED, **fed}, {**PREDICTED, **fed, "input_placement": "loader"}])
    assert text.startswith("net, local batch 1,024\n")
    assert "ring, input loader" in text
    assert text_table([{**PREDICTED, **fed, "scaling": "strong"}]).startswith("net, global batch 4,096\n")
