"""The picture of a topology: what it shows, told from its elements; how it looks was looked at."""

import functools
import re
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import pytest

from scaling.report.machine_pictures import draw
from tests.topologies.conftest import load
from topologies.layout import Box, lay_out
from topologies.model import Device, Link, Machine, Topology
from topologies.schema import load as load_anew
from topologies.schema import shipped

SVG = "{http://www.w3.org/2000/svg}"


@functools.cache
def drawn(name):
    return draw(load(name))


def elements(picture):
    return ElementTree.fromstring(picture)


def lines(picture):
    return [path for path in elements(picture).iter(f"{SVG}path") if not re.search("[CQz]", path.get("d"))]


def labels(picture):
    return ["".join(text.itertext()) for text in elements(picture).iter(f"{SVG}text")]


def overlap(a: Box, b: Box):
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.bottom and b.y < a.bottom


@pytest.mark.parametrize("name", shipped())
class TestEveryMachine:
    def test_every_device_of_a_node_is_labelled_once_every_link_has_a_line_and_so_every_time(self, name):
        machine, found = load(name).machine, labels(drawn(name))
        assert {found.count(device.id) for device in machine.devices} == {1}
        assert len(lines(drawn(name))) >= len(machine.links)
        assert drawn(name) == draw(load_anew(name))

    def test_no_box_lies_on_another_or_outside_of_the_picture(self, name):
        boxes = lay_out(load(name).machine).boxes.values()
        assert [(a.device.id, b.device.id) for a, b in combinations(boxes, 2) if overlap(a, b)] == []
        picture = elements(drawn(name))
        _, _, width, height = map(float, picture.get("viewBox").split())
        for path in picture.iter(f"{SVG}path"):
            corners = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
            assert min(corners) >= 0
            assert (max(corners[::2]) <= width, max(corners[1::2]) <= height) == (True, True)


class TestLabels:
    @pytest.mark.parametrize(("name", "counted"), [
        ("dual-k80", {"pcie": 6, "8.0 GB/s": 6, "32.0 GB/s": 1, "board k80-0": 1, "board k80-1": 1}),
        ("dual-k80", {"CPU: Intel Xeon E5-2630 v3": 1, "Peer access: gpu0, gpu1; gpu2, gpu3": 1}),
        ("dual-k80", {"pcie3-x16: 8.0 GB/s each direction, 0.25 us": 1}),
        ("dgx1-v100", {"2 x nvlink 40.0 GB/s": 8, "nvlink 20.0 GB/s": 8}),  # bundled cables
        ("hgx-h200-4", {"135 / 164 GB/s": 1}),  # directions that differ
        ("hgx-h200-x16-infiniband", {"gpu0": 1, "network": 1, "InfiniBand NDR": 1}),  # one node of them
        ("hgx-h200-x16-infiniband", {"50.0 GB/s a NIC": 1, "x 16 nodes": 1}),
    ])  # fmt: skip
    def test_they_tell_devices_links_boards_peer_access_and_the_network(self, name, counted):
        found = labels(drawn(name))
        assert {text: found.count(text) for text in counted} == counted

    def test_names_are_escaped(self):
        odd = replace(load("dual-k80"), name="<a & b>", description='"quoted" <b>')
        assert {"<a & b>", '"quoted" <b>'} <= set(labels(draw(odd)))


class TestLayout:
    def machine(self, *links, **kinds):
        devices = tuple(Device(name, kind) for name, kind in kinds.items())
        return Machine("odd", devices, tuple(Link(f"{a}-{b}", a, b, "pcie", 1e9, 0.0) for a, b in links))

    def test_devices_stand_below_what_they_hang_on(self):
        machine = self.machine(
            ("c", "m"), ("c", "s"), ("s", "t"), ("t", "g"), ("g", "v"),
            m="host_memory", c="cpu", s="pcie_switch", t="pcie_switch", g="gpu", v="nvswitch",
        )  # fmt: skip
        boxes = lay_out(machine).boxes
        assert sorted(boxes, key=lambda name: boxes[name].y) == ["m", "c", "s", "t", "g", "v"]

    def test_switch_spans_its_gpus(self):
        layout = lay_out(load("pcie-8").machine)
        switch, first, last = (layout.boxes[name] for name in ("switch0", "gpu0", "gpu3"))
        assert (switch.x, switch.x + switch.width) == (first.x, last.x + last.width)

    def test_direct_links_do_not_run_over_one_another(self):
        layout = lay_out(load("dgx1-v100").machine)
        links = [link for link in load("dgx1-v100").machine.links if link.id in layout.tracks]
        spans = {link.id: sorted(layout.boxes[end].x for end in (link.first, link.second)) for link in links}
        for a, b in combinations(layout.tracks, 2):
            if layout.tracks[a] == layout.tracks[b]:
                assert spans[a][1] < spans[b][0] or spans[b][1] < spans[a][0]

    def test_odd_machines_are_drawn_too(self):
        machines = [
            self.machine(("m", "g"), m="host_memory", g="gpu"),
            self.machine(("c", "m"), ("c", "n"), ("c", "d"), ("d", "e"), ("c", "e"),
                         m="host_memory", c="cpu", d="cpu", e="cpu", n="nic"),
            self.machine(("c", "m"), ("c", "o"), m="host_memory", o="host_memory", c="cpu"),
        ]  # fmt: skip
        for machine in machines:
            boxes = lay_out(machine).boxes.values()
            assert not any(overlap(a, b) for a, b in combinations(boxes, 2))
            assert len(lines(draw(Topology("odd", machine)))) >= len(machine.links)
