"""Rank 0 makes sure that it listens where all ranks look for it; nobody else can say who the ranks are."""

import json
import platform
import socket
from dataclasses import asdict

import pytest
from torch.distributed import HashStore

from launchers.base import MEETING_TOKEN_VARIABLE
from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.runtime import meeting
from scaling.runtime.meeting import RankPlace, Signed, Waiting, Watched, here, require_here, say_pids


def test_rank_0_that_is_not_where_the_ranks_meet_says_where_it_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_here("127.0.0.1", port)
    with pytest.raises(LaunchError, match=r"MASTER_ADDR says 127\.0\.0\.1, where nobody answers") as caught:
        require_here("127.0.0.1", port)
    assert platform.node() in str(caught.value)


def test_name_that_nobody_knows_yet_tells_nothing():
    require_here("nowhere.invalid", 29500)


PLACES = [RankPlace(here(), 100 + rank, -1) for rank in range(2)]


@pytest.fixture
def store(monkeypatch):
    """The store of a launch whose token is `ours`, with what its second rank has said."""
    monkeypatch.setenv(MEETING_TOKEN_VARIABLE, "ours")
    made = HashStore()
    Signed(made).set("1", json.dumps(asdict(PLACES[1])))
    return made


def first_rank():
    return Waiting(RankInfo(0, 0, 2, 2, "torchrun", table="torchrun"), 300.0)


@pytest.mark.parametrize("token", ["ours", "", "\udcff\n"])
def test_ranks_of_one_token_meet(monkeypatch, token):
    monkeypatch.setenv(MEETING_TOKEN_VARIABLE, token)
    store = HashStore()
    Signed(store).set("1", json.dumps(asdict(PLACES[1])))
    assert first_rank().meet(store, PLACES[0]) == PLACES


def test_rank_of_another_token_is_not_met(store, monkeypatch):
    monkeypatch.setenv(MEETING_TOKEN_VARIABLE, "guessed")
    Signed(store).set("0", "{}")
    say_pids(store, [1, 2])
    monkeypatch.setenv(MEETING_TOKEN_VARIABLE, "ours")
    assert not Signed(store).check(["0"])
    assert not Signed(store).check([meeting.PIDS])
    assert first_rank().meet(store, PLACES[0]) == PLACES


@pytest.mark.parametrize("change", [lambda said: b"x" + said[1:], lambda said: said + b" ", lambda _: b""])
def test_what_a_stranger_writes_in_a_ranks_place_is_refused(store, change):
    """One who lists the store's names knows where; it has no password."""
    inside = Signed(store)._store
    inside.set("1", change(inside.get("1")))
    with pytest.raises(LaunchError, match="'1' was written by somebody else"):
        first_rank().meet(store, PLACES[0])


def test_what_one_rank_has_said_cannot_be_said_in_anothers_place(store):
    inside = Signed(store)._store
    inside.set("trouble", inside.get("1"))
    with pytest.raises(LaunchError, match="'trouble' was written by somebody else"):
        Signed(store).get("trouble")


def test_token_is_not_in_what_is_said_at_the_store(store):
    inside = Signed(store)._store
    assert b"ours" not in inside.get("1")
    watched = Watched()
    try:
        place = watched.place(RankInfo(0, 0, 2, 1, "torchrun", table="torchrun"))
        assert place.meeting[2] == "", "the watchers of several hosts know it from their environment"
    finally:
        watched._listener.close()


def test_without_a_token_of_the_launcher_rank_0_draws_one_for_the_watchers(monkeypatch):
    monkeypatch.delenv(MEETING_TOKEN_VARIABLE, raising=False)
    watched = Watched()
    try:
        place = watched.place(RankInfo(0, 0, 2, 1, "torchrun", table="torchrun"))
        assert len(place.meeting[2]) == 32
    finally:
        watched._listener.close()
