"""The overlapped step in two real processes: the same training, in buckets, with the exchange in sight."""

import pytest

EXCHANGING = ("all_reduce", "ring", "tree")
CONTROLS = ("none", "no_op", "no_op(path=hook)")
ARMS = (*EXCHANGING, *CONTROLS)
WAYS = ("one bucket", "several", "split")

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def seen(on_ranks):
    """seen(scenario, key): what both ranks saw."""
    ranks = on_ranks("overlapped_worker.py", 2)
    return lambda scenario, key: [rank[scenario][key] for rank in ranks]


class TestSameTraining:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("arm", EXCHANGING)
    def test_losses_and_parameters_are_the_eager_steps_to_rounding(self, seen, arm, way):
        """Dropout and batch normalisation too: random numbers and statistics are drawn and kept alike."""
        eager, overlapped = seen("trainings", f"{arm} eager"), seen("trainings", f"{arm} {way}")
        for one, other in zip(eager, overlapped, strict=True):
            assert other["losses"] == pytest.approx(one["losses"], rel=1e-5)
            assert other["state"] == pytest.approx(one["state"], rel=1e-4, abs=1e-6)
            assert other["random"] == one["random"]

    @pytest.mark.parametrize("way", ["one bucket", "several", "split"])
    @pytest.mark.parametrize("arm", CONTROLS)
    def test_control_arms_drift_apart_exactly_as_none_does(self, seen, arm, way):
        eager, overlapped = seen("trainings", "none eager"), seen("trainings", f"{arm} {way}")
        for one, other in zip(eager, overlapped, strict=True):
            assert (other["losses"], other["state"]) == (one["losses"], one["state"])
        assert overlapped[0]["state"] != pytest.approx(overlapped[1]["state"], rel=1e-3)

    def test_exchange_makes_a_difference_that_would_be_seen(self, seen):
        for one, other in zip(seen("trainings", "ring eager"), seen("trainings", "none eager"), strict=True):
            assert one["losses"][0] == other["losses"][0]
            assert one["losses"] != pytest.approx(other["losses"], rel=1e-3)
            assert one["state"] != pytest.approx(other["state"], rel=1e-2, abs=1e-4)


class TestBuckets:
    @pytest.mark.parametrize("arm", ["ring", "tree", "no_op(path=hook)"])
    def test_their_number_and_size_are_noted(self, seen, arm):
        for one, several in zip(
            seen("trainings", f"{arm} one bucket"), seen("trainings", f"{arm} several"), strict=True
        ):
            assert one["notes"][0].startswith("1 bucket of ")
            assert int(several["notes"][0].split()[0]) > 2

    @pytest.mark.parametrize("arm", ["all_reduce", "no_op", "none"])
    def test_those_of_ddps_own_path_are_not_seen_before_split_steps(self, seen, arm):
        for rank in seen("trainings", f"{arm} several"):
            assert rank["notes"] == []

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("arm", ARMS)
    def test_bytes_are_metered_in_every_step(self, seen, arm, way):
        for rank in seen("trainings", f"{arm} {way}"):
            # Two ranks: by a ring, a tree and an all-reduce alike each sends what it has once.
            expected = rank["num_bytes"] if arm in EXCHANGING else 0
            assert rank["sent"] == [expected] * len(rank["losses"])


class TestDryPasses:
    @pytest.mark.parametrize("arm", ARMS)
    def test_parameters_and_statistics_are_as_before(self, seen, arm):
        for same in seen("dry_passes", arm):
            assert [name for name, is_same in same["state"].items() if not is_same] == []

    @pytest.mark.parametrize("arm", ARMS)
    def test_random_state_is_as_before(self, seen, arm):
        assert [rank["random"] for rank in seen("dry_passes", arm)] == [True, True]


class TestSpans:
    def split(self, seen, arm) -> list[list[list]]:
        """Spans of each split step of both ranks."""
        ranks = seen("trainings", f"{arm} split")
        half = len(ranks[0]["spans"]) // 2
        assert [rank["spans"][:half] for rank in ranks] == [[None] * half] * 2
        return [spans for rank in ranks for spans in rank["spans"][half:]]

    @pytest.mark.parametrize("arm", ARMS)
    def test_computation_is_on_main(self, seen, arm):
        for spans in self.split(seen, arm):
            phases = [phase for phase, lane, *_ in spans if lane == "main"]
            assert (phases[0], phases[-1]) == ("forward", "update")
            assert set(phases) == {"forward", "backward", "update"}

    @pytest.mark.parametrize("arm", EXCHANGING)
    def test_exchange_is_beside_and_begins_before_backward_ends(self, seen, arm):
        for spans in self.split(seen, arm):
            exchanges = [start for phase, lane, start, _ in spans if (phase, lane) == ("communicate", "comm")]
            assert len(exchanges) > 2
            assert min(exchanges) < max(stop for phase, _, _, stop in spans if phase == "backward")

    @pytest.mark.parametrize("arm", CONTROLS)
    def test_control_arms_exchange_nothing(self, seen, arm):
        assert {lane for spans in self.split(seen, arm) for _, lane, *_ in spans} <= {"main", "hook"}

    def test_only_none_has_no_hook(self, seen):
        for arm in ARMS:
            lanes = {lane for spans in self.split(seen, arm) for _, lane, *_ in spans}
            assert ("hook" in lanes) == (arm != "none")


def test_step_is_gone_when_nobody_has_it(seen):
    for steps in seen("forgotten", "steps"):
        assert {name: gone for name, gone in steps.items() if gone != [True, True]} == {}
    assert seen("forgotten", "threads_left") == [False, False]


class TestExchangeThatFails:
    def test_error_is_that_ranks_own(self, seen):
        other, failed = seen("fails", "failure")
        assert failed == "KeyError: 'planted failure'"
        assert other is not None  # it waited for the exchange that failed
        assert seen("fails", "reason") == [failed] * 2

    def test_nothing_is_exchanged_after_it(self, seen):
        assert seen("fails", "num_exchanges") == [2, 2]

    def test_launch_goes_on_and_a_new_group_works(self, seen):
        assert seen("fails", "can_go_on") == [True, True]
        before = seen("trainings", "ring several")
        for losses, rank in zip(seen("fails", "losses_again"), before, strict=True):
            assert losses == rank["losses"]
