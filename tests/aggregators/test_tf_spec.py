"""The language of TensorFlow's all_reduce_spec."""

import pytest

from scaling.aggregators.presets.tf_spec import (
    ALGORITHMS,
    Tier,
    parse_spec,
    schedule_between_ranks,
    schedule_in_host_memory,
    tensors_of_tiers,
    tier_of,
)
from scaling.bucket import BucketLayout
from scaling.collectives.verify import verify
from scaling.errors import StudyError


class TestGrammar:
    @pytest.mark.parametrize(("spec", "tiers"), [
        ("pscpu:2k:pscpu#2:64k:xring", [("pscpu", 1, 2048), ("pscpu", 2, 65536), ("xring", 1, -1)]),
        # One algorithm is for every tensor, and its shards follow it.
        *((algorithm, [(algorithm, 1, -1)]) for algorithm in ALGORITHMS),
        *((f"{algorithm}#{shards}", [(algorithm, shards, -1)]) for algorithm, shards in
          (("xring", 1), ("xring", 8), ("pscpu", 2), ("psgpu", 4), ("collective", 2), ("nccl/xring", 2),
           ("pscpu/pscpu", 2))),
        # Limits are counted in powers of 1024.
        *((f"pscpu:{text}:nccl", [("pscpu", 1, limit), ("nccl", 1, -1)]) for text, limit in
          (("1", 1), ("1000", 1000), ("32k", 32768), ("32K", 32768), ("3M", 3 << 20), ("2G", 2 << 30),
           ("1T", 1 << 40))),
    ])  # fmt: skip
    def test_a_spec_is_its_tiers(self, spec, tiers):
        assert parse_spec(spec) == [Tier(*one) for one in tiers]

    def test_shards_of_two_algorithms_are_those_between_nodes(self):
        (tier,) = parse_spec("pscpu/pscpu#2")
        assert (tier.inside, tier.shards, tier.inside_shards) == ("pscpu", 2, 1)
        (tier,) = parse_spec("psgpu#4")
        assert (tier.inside, tier.inside_shards) == ("psgpu", 4)

    @pytest.mark.parametrize(("spec", "message"), [
        ("", "algorithm '': the algorithms are nccl, "),
        ("ring", "algorithm 'ring': the algorithms are nccl, .*, collective$"),
        ("xring/nccl", "algorithm 'xring/nccl'"),
        ("pscpu#2/pscpu", "'2/pscpu' shards of pscpu: shards are a whole number above 0"),
        ("pscpu:2k", "it ends with a limit: .* an algorithm for the rest is last"),
        ("pscpu:2k:xring:64k", "it ends with a limit"), ("pscpu:2k:", "algorithm ''"),
        ("pscpu:2q:xring", "limit '2q': a limit is a whole number above 0, with k, K, M, G or T"),
        ("pscpu:-1:xring", "limit '-1'"), ("pscpu:0:xring", "limit '0'"),
        ("pscpu:1.5k:xring", "limit '1.5k'"),
        ("pscpu:2k:xring:2k:nccl", "limit 2048 follows 2048: each limit is above the one before it"),
        ("pscpu:1M:xring:64k:nccl", "limit 65536 follows 1048576"),
        ("xring#", "'' shards of xring"), ("xring#two", "'two' shards of xring"),
        ("xring#0", "'0' shards of xring"),
        ("nccl#2", "2 shards of nccl: nccl has no shards"),
        ("rechd#2", "rechd has no shards"),
        ("collective#3", "3 shards of collective: 1 and 2 are allowed"),
    ])  # fmt: skip
    def test_what_is_wrong_is_named_with_what_is_allowed(self, spec, message):
        with pytest.raises(StudyError, match=message) as caught:
            parse_spec(spec)
        assert str(caught.value).startswith(f"all_reduce_spec {spec!r}: ")


@pytest.mark.parametrize(
    ("size", "index"), [(1, 0), (2048, 0), (2049, 1), (65536, 1), (65537, 2), (10**9, 2)]
)
def test_limit_is_the_largest_number_of_elements_of_its_tier(size, index):
    assert tier_of(parse_spec("pscpu:2k:pscpu#2:64k:xring"), size) == index


LAYOUT = BucketLayout.of(
    [("a", (5, 3)), ("b", ()), ("c", (0, 4)), ("d", (301,)), ("e", (7,)), ("f", (2, 64))]
)


def tiers_of(spec, layout=LAYOUT):
    return tensors_of_tiers(parse_spec(spec), layout)


def test_tensors_are_divided_by_their_elements_and_empty_ones_left_out():
    assert [one.spans for one in tiers_of("pscpu:7:xring:128:nccl")] == [
        ((15, 16), (317, 324)), ((0, 15), (324, 452)), ((16, 317),),
    ]  # fmt: skip


class TestBetweenRanks:
    @pytest.mark.parametrize(("spec", "sizes"), [
        *((spec, range(1, 9)) for spec in ("xring", "psgpu", "xring:7:psgpu", "psgpu:15:xring:128:psgpu")),
        *((f"{algorithm}#{shards}", range(3, 9)) for algorithm in ("xring", "psgpu") for shards in (1, 2, 3)),
        ("rechd", (1, 2, 4, 8)),
    ])  # fmt: skip
    def test_every_rank_gets_the_sum(self, spec, sizes):
        for world_size in sizes:
            verify(schedule_between_ranks(tiers_of(spec), LAYOUT.num_elements, world_size))

    def test_tensors_of_other_tiers_are_left_alone(self):
        schedule = schedule_between_ranks(tiers_of("pscpu:20:xring"), LAYOUT.num_elements, 4)
        bounds = schedule.bounds(LAYOUT.num_elements)
        moved = {i for step in schedule.steps for t in step for i in range(bounds[t.start], bounds[t.stop])}
        assert moved == set(range(16, 317)) | set(range(324, 452))
        for without_such in ("pscpu:1k:xring", "nccl"):
            assert schedule_between_ranks(tiers_of(without_such), LAYOUT.num_elements, 4) is None

    def test_groups_of_psgpu_are_dealt_out_and_take_turns(self):
        schedule = schedule_between_ranks(tiers_of("psgpu#2"), LAYOUT.num_elements, 4)
        owner_of = {transfer.start: transfer.target for transfer in schedule.steps[0]}
        assert [owner_of[piece] for piece in range(10)] == [0, 2, 1, 3, 0, 2, 1, 3, 0, 2]


class TestInHostMemory:
    @pytest.mark.parametrize("shards", [1, 2, 5])
    @pytest.mark.parametrize("world_size", range(1, 9))
    def test_every_rank_gets_the_sum_in_two_steps(self, world_size, shards):
        (tier,) = tiers_of(f"pscpu#{shards}")
        verification = verify(schedule_in_host_memory(tier, world_size))
        assert verification.num_steps == 2
        assert verification.sent_ratio_per_rank == [1] * world_size
        assert verification.sent_ratio_per_host == [world_size]

    def test_every_tensor_has_its_own_pieces(self):
        (tier,) = tiers_of("pscpu#2", BucketLayout.of([("a", (5,)), ("b", (1,)), ("c", (4,))]))
        assert schedule_in_host_memory(tier, 3).chunk_elements == (2, 3, 0, 1, 2, 2)
