"""The language of TensorFlow's all_reduce_spec."""

import pytest

from scaling.collectives.tf_spec import ALGORITHMS, Tier, parse_spec, tier_of
from scaling.errors import StudyError


class TestGrammar:
    def test_default_has_three_tiers(self):
        assert parse_spec("pscpu:2k:pscpu#2:64k:xring") == [
            Tier("pscpu", 1, 2048), Tier("pscpu", 2, 65536), Tier("xring", 1, -1),
        ]  # fmt: skip

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_one_algorithm_is_for_every_tensor(self, algorithm):
        assert parse_spec(algorithm) == [Tier(algorithm, 1, -1)]

    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            ("1", 1),
            ("1000", 1000),
            ("32k", 32768),
            ("32K", 32768),
            ("3M", 3 << 20),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
        ],
    )
    def test_limits_are_counted_in_powers_of_1024(self, text, limit):
        assert parse_spec(f"pscpu:{text}:nccl")[0].limit == limit

    @pytest.mark.parametrize(
        "text", ["xring#1", "xring#8", "pscpu#2", "psgpu#4", "collective#2", "nccl/xring#2", "pscpu/pscpu#2"]
    )
    def test_shards_follow_the_algorithm(self, text):
        (tier,) = parse_spec(text)
        assert f"{tier.algorithm}#{tier.shards}" == text

    def test_shards_of_two_algorithms_are_those_between_nodes(self):
        (tier,) = parse_spec("pscpu/pscpu#2")
        assert (tier.inside, tier.shards, tier.inside_shards) == ("pscpu", 2, 1)
        (tier,) = parse_spec("psgpu#4")
        assert (tier.inside, tier.inside_shards) == ("psgpu", 4)

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("", "algorithm '': the algorithms are nccl, "),
            ("ring", "algorithm 'ring': the algorithms are nccl, .*, collective$"),
            ("xring/nccl", "algorithm 'xring/nccl'"),
            ("pscpu#2/pscpu", "'2/pscpu' shards of pscpu: shards are a whole number above 0"),
            ("pscpu:2k", "it ends with a limit: .* an algorithm for the rest is last"),
            ("pscpu:2k:xring:64k", "it ends with a limit"),
            ("pscpu:2k:", "algorithm ''"),
            ("pscpu:2q:xring", "limit '2q': a limit is a whole number above 0, with k, K, M, G or T"),
            ("pscpu:-1:xring", "limit '-1'"),
            ("pscpu:0:xring", "limit '0'"),
            ("pscpu:1.5k:xring", "limit '1.5k'"),
            ("pscpu:2k:xring:2k:nccl", "limit 2048 follows 2048: each limit is above the one before it"),
            ("pscpu:1M:xring:64k:nccl", "limit 65536 follows 1048576"),
            ("xring#", "'' shards of xring"),
            ("xring#two", "'two' shards of xring"),
            ("xring#0", "'0' shards of xring"),
            ("nccl#2", "2 shards of nccl: nccl has no shards"),
            ("rechd#2", "rechd has no shards"),
            ("collective#3", "3 shards of collective: 1 and 2 are allowed"),
        ],
    )
    def test_what_is_wrong_is_named_with_what_is_allowed(self, spec, message):
        with pytest.raises(StudyError, match=message) as caught:
            parse_spec(spec)
        assert str(caught.value).startswith(f"all_reduce_spec {spec!r}: ")


class TestTierOf:
    @pytest.mark.parametrize(
        ("size", "index"), [(1, 0), (2048, 0), (2049, 1), (65536, 1), (65537, 2), (10**9, 2)]
    )
    def test_limit_is_the_largest_number_of_elements_of_its_tier(self, size, index):
        assert tier_of(parse_spec("pscpu:2k:pscpu#2:64k:xring"), size) == index
