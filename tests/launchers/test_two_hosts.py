"""Two hosts on one machine: the commands that make them, what is refused, and that none is left."""

import os
import re
import subprocess
import sys

import pytest

from launchers.two_hosts import HOSTS, NAMES_FOLDER, HostLink, _wait, set_up_commands, why_not
from tests.waiting import LIMIT_S


@pytest.fixture
def start(need):
    """start(*words): the command line in the background, its output to be read; nothing is left of it."""
    reason = why_not()
    need(reason is None, str(reason))
    started = []

    def begin(*words):
        command = [sys.executable, "-m", "launchers.two_hosts", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()  # if the test has failed
        process.communicate(timeout=LIMIT_S)
        hosts = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        assert f"-{process.pid}-" not in hosts.stdout
        assert not list(NAMES_FOLDER.glob(f"*-{process.pid}-*"))


class Told:
    """A process that ends with a code after so many questions whether it has."""

    def __init__(self, code, questions):
        self._code, self.left, self.returncode = code, questions, None

    def poll(self):
        self.left -= 1
        self.returncode = self._code if self.left < 0 else None
        return self.returncode


@pytest.mark.parametrize(("codes", "questions", "code"), [
    ((0, 0), (0, 3), 0), ((0, 0), (3, 0), 0), ((0, 0), (2, 2), 0), ((3, 0), (1, 1), 3), ((0, 3), (1, 1), 3),
])  # fmt: skip
def test_both_hosts_are_waited_for_and_the_code_of_one_that_fails_is_the_launchs(codes, questions, code):
    started = [Told(*one) for one in zip(codes, questions, strict=True)]
    assert _wait(started) == code
    assert code or [one.returncode for one in started] == [0, 0]


def test_hosts_have_an_address_each_and_a_link_between_them():
    of_host = (
        "ip -n {0} address add 198.18.0.{1}/30 dev link0|ip -n {0} link set lo up|ip -n {0} link set link0 up"
    )
    assert [" ".join(command) for command in set_up_commands(("a", "b"), HostLink())] == [
        *("ip netns add a", "ip netns add b"),
        "ip link add name link0 netns a type veth peer name link0 netns b",
        *of_host.format("a", 1).split("|"),
        *of_host.format("b", 2).split("|"),
    ]


def test_both_directions_are_limited_and_delay_comes_after_the_rate():
    def queues(link):
        return [" ".join(command) for command in set_up_commands(("a", "b"), link) if command[0] == "tc"]

    limited = "qdisc add dev link0 root handle 1: tbf rate 100mbit burst 125000b latency 1s"
    assert queues(HostLink(rate="100mbit")) == [f"tc -n {name} {limited}" for name in "ab"]
    delayed = "qdisc add dev link0 {} netem delay 5ms limit 100000"
    assert queues(HostLink(delay="5ms")) == [f"tc -n {name} {delayed.format('root')}" for name in "ab"]
    assert queues(HostLink(rate="100mbit", delay="5ms")) == [
        f"tc -n {name} {queue}" for name in "ab" for queue in (limited, delayed.format("parent 1:1"))
    ]


@pytest.mark.parametrize("keys", [{"rate": "100"}, {"rate": "0mbit"}, {"rate": "8mbps"}, {"delay": "5"}])
def test_rate_or_delay_without_its_unit_is_refused(keys):
    (what,) = keys
    with pytest.raises(ValueError, match=rf"{what} '\w+' is not of the form"):
        HostLink(**keys)


def test_command_runs_on_both_hosts_which_know_each_other_and_how_slow_the_link_is(start):
    shown = 'echo "$(hostname): $(getent hosts host1 host2 | tr -s " " | paste -sd,)" >&2'
    process = start("--rate", "8mbit", "sh", "-c", f"{shown}; env | grep ^SCALING_LINK_ >&2")
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    names = [f"{host}: 198.18.0.1 host1,198.18.0.2 host2" for host in HOSTS]
    assert sorted(errors.splitlines()) == sorted([*names, *["SCALING_LINK_RATE=8mbit"] * 2])


def test_host_that_fails_ends_the_other_and_gives_the_status(start):
    process = start("sh", "-c", 'if [ "$(hostname)" = host1 ]; then exit 7; fi; sleep 5')
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 7


def test_told_to_end_it_ends_what_runs_on_both_hosts(start):
    process = start("sh", "-c", "echo up >&2; exec sleep 300.25")
    assert [process.stderr.readline() for _ in HOSTS] == ["up\n", "up\n"]
    process.terminate()
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and "300.25" in command_line(pid)]


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


MEET = """\
import socket, sys, time

if socket.gethostname() == "host1":
    with socket.create_server(("", 29400)) as server:
        server.accept()[0].recv(1)
    sys.exit()
while True:
    begun = time.monotonic()
    try:
        socket.create_connection(("host1", 29400))
        break
    except OSError:  # it is not yet there
        time.sleep(0.1)
print("round trip", time.monotonic() - begun, file=sys.stderr)
"""


def test_packets_are_delayed_or_it_is_said_that_the_kernel_cannot(start):
    process = start("--delay", "200ms", sys.executable, "-c", MEET)
    _, errors = process.communicate(timeout=LIMIT_S)
    if process.returncode == 0:
        assert float(re.search(r"round trip (\S+)", errors)[1]) > 0.4
        return
    assert process.returncode == 2
    assert "This kernel has no netem: leave the delay out, or load its module sch_netem." in errors
