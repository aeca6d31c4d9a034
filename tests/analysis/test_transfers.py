"""Transfer cells in the report: from samples of known times to tables, a figure and a machine file."""

import csv
import io
import itertools
import json
import math
from dataclasses import asdict

import pytest
from rich.console import Console

from scaling.analysis import summary_table
from scaling.analysis.columns import to_rows
from scaling.analysis.study_scatter import MODERATED
from scaling.analysis.transfers import (
    largest_of,
    lines_of,
    read_transfers,
    transfer_findings,
    transfer_groups,
    transfer_rows,
)
from scaling.errors import StoreError
from scaling.measure.probe.cases import MIB, ProbeSample, cases
from scaling.measure.probe.machine_file import with_detected
from scaling.report import status_table, write_report
from scaling.report.figures.transfers import FAMILIES, bandwidth_lines, standing_out
from scaling.report.terminal import render_tables
from scaling.report.transfer_tables import name_of, render_transfers, who_did
from scaling.store import RunRecord
from tests.made_studies import StudyFolder, texts_of
from topologies.facts import Facts, Gpu, Host, NumaNode, PcieLink
from topologies.schema import load

RATES = {"h2d": 55e9, "d2h": 50e9, "h2d_d2h": 45e9, "peer_copy": 370e9, "host_sum": 10e9}


def seconds_of(case, num_bytes, launch):
    if launch == "host_only" and case.operation in ("send", "swap", "shift", "all_reduce"):
        return 20e-6 + num_bytes / 20e9
    at_once = 0.5 if len(case.ranks) > 1 and case.operation in ("h2d", "d2h", "h2d_d2h") else 1.0
    pageable = 0.1 if case.memory == "pageable" else 1.0
    return 5e-6 + num_bytes / (RATES.get(case.operation, 300e9) * at_once * pageable)


def facts(num_gpus=2):
    gpus = tuple(
        Gpu(i, "A GPU", f"GPU-a{i}", f"0000:{i}8:00.0", PcieLink(5, 16), switch_links=18)
        for i in range(num_gpus)
    )
    found = Facts("box", Host("A CPU", (NumaNode(0, 0, 64, 2**40),)), gpus)
    peers = [[other for other in range(num_gpus) if other != own] for own in range(num_gpus)]
    ranks = [{"name": "A GPU", "uuid": f"a{i}", "peers": own} for i, own in enumerate(peers)]
    said = {"torch": "2.11.0", "nccl": "2.28.9", "device": "cuda", "host": "box", "num_threads": 4}
    return with_detected({**said, "ranks": ranks}, found, "2025-03-01")


def lines(peer_access=True, factor=1.0, count=7):
    """rank0.jsonl of one run: every case of two GPUs, `count` samples each, spread by 1%."""
    launch = "default" if peer_access else "host_only"
    rows = [{"facts": facts()}]
    for case in cases(2, on_gpus=True, peer_copies=peer_access):
        what = case.operation, case.ranks, case.memory, case.captured, case.num_threads
        for size, at in itertools.product(case.sizes_bytes, range(count)):
            seconds = factor * seconds_of(case, size, launch) * (1 + (at - count // 2) / 300)
            rows.append({"sample": asdict(ProbeSample(launch, *what, size, 1, seconds))})
    return [*rows, {"note": "something was left out"}]


def cell(peer_access=True, world_size=2):
    own = {"kind": "transfer", "device": "cuda", "threads": 4, "seconds": 20.0}
    return {**own, "world_size": world_size, "peer_access": peer_access}


def add(study, runs, of, notes=()):
    """A cell of the study; each run is rank 0's lines, or the reason why it failed."""
    cell_id = f"{len(study.folder.runs()) + 100:012x}"
    for repeat, run in enumerate(runs):
        record = RunRecord(cell_id, repeat, of)
        study.folder.start_run(record, {"launcher": "local", "host": "here", "num_nodes": 1})
        if isinstance(run, str):
            study.folder.fail_run(record, run)
            continue
        study.folder.sample_writer(cell_id, repeat, 0)(run)
        study.folder.finish_run(record, {"seconds": {"unprofiled": 20.0}}, notes)


@pytest.fixture(scope="module")
def links(tmp_path_factory):
    """Two cells of two GPUs: with access between them in two launches, and without in one; for reading
    alone."""
    study = StudyFolder(tmp_path_factory.mktemp("links") / "by-hand")
    for peer_access, runs in ((False, [lines(False)]), (True, [lines(), lines(factor=1.1)])):
        add(study, runs, cell(peer_access), ["something was left out"])
    return study


@pytest.fixture(scope="module")
def report(links):
    return write_report(links.folder)


@pytest.fixture(scope="module")
def results(links):
    return read_transfers(links.folder)


def found_line(results, name, who, *, host_only=False):
    (group,) = transfer_groups(results)
    name = f"{name}, host-only" if host_only else name
    return next(one for one in largest_of(lines_of(group)) if (name_of(one), one.who) == (name, who))


class TestTable:
    def test_csv_and_json_have_a_row_an_operation_size_and_ranks_and_summaries_one_a_cell(
        self, links, report, results
    ):
        text = (links.folder.path / "transfers.csv").read_bytes().decode()
        assert all(line.endswith("\r\n") for line in text.splitlines(keepends=True))
        rows = list(csv.DictReader(io.StringIO(text)))
        keys = ("peer_access", "operation", "memory", "captured", "num_threads", "ranks", "num_bytes")
        assert len({tuple(row[key] for key in keys) for row in rows}) == len(rows)
        made = [case for access in (True, False) for case in cases(2, on_gpus=True, peer_copies=access)]
        assert len(rows) == sum(len(case.sizes_bytes) for case in made)
        made = json.loads(json.dumps(report.as_dict()))["transfers"]
        assert (len(made), made[0]["seconds"] > 0) == (len(transfer_rows(results)), True)
        rows = to_rows(summary_table(links.folder))
        expected = [("transfer", False, "done", 1), ("transfer", True, "done", 2)]
        assert [(row["kind"], row["peer_access"], row["state"], row["repeats"]) for row in rows] == expected
        for name in ("model", "aggregator", "precision", "input_placement", "h2d_s", "d2h_s", "iteration_s"):
            assert {row[name] for row in rows} == {None}, name
        assert rows[0]["notes"] == "something was left out"

    def test_row_has_median_quartiles_interval_and_the_line_through_all_sizes(self, results):
        asked = {"operation": "h2d", "ranks": "1", "memory": "pinned", "num_bytes": 256 * MIB}
        asked |= {"peer_access": True}
        (row,) = [row for row in transfer_rows(results) if {name: row[name] for name in asked} == asked]
        one = 5e-6 + 256 * MIB / 55e9
        assert (row["who"], row["n"], row["launches"]) == ("alone", 14, 2)
        assert one * 0.99 < row["seconds_q1"] < row["seconds"] < row["seconds_q3"] < 1.12 * one
        assert row["interval_method"] == MODERATED
        assert row["seconds_low"] < one < 1.1 * one < row["seconds_high"]
        assert math.isclose(row["algbw_bytes_per_s"], 256 * MIB / row["seconds"])
        assert math.isclose(row["latency_s"], 5e-6 * 1.05, rel_tol=0.06)
        assert math.isclose(row["bandwidth_bytes_per_s"], 55e9 / 1.05, rel_tol=0.06)
        low, high = (row[f"bandwidth_bytes_per_s_{end}"] for end in ("low", "high"))
        assert low <= row["bandwidth_bytes_per_s"] <= high
        assert row["line_worst_error"] < 0.02

    @pytest.mark.usefixtures("without_figures")
    def test_what_does_not_exist_is_empty(self, study):
        add(study, [lines(count=3)], cell())
        write_report(study.folder)
        rows = list(csv.DictReader((study.folder.path / "transfers.csv").open(newline="")))
        assert {row["seconds_low"] for row in rows} == {""}  # three samples allow no interval
        assert {row["latency_s"] for row in rows if row["operation"] == "device_copy"} == {""}  # one size
        assert not {"None", "nan"} & {value for row in rows for value in row.values()}

    def test_cells_with_a_model_stand_before_and_unchanged(self, study):
        study.add_steps([[0.1] * 9], world_size=2)
        alone = to_rows(summary_table(study.folder))
        add(study, [lines(count=3)], cell())
        both = to_rows(summary_table(study.folder))
        assert (both[0], both[1]["kind"]) == (alone[0], "transfer")
        assert len(render_tables(summary_table(study.folder))) == 1


class TestPeople:
    def test_ranks_that_did_the_same_share_a_line_of_a_table_in_80_columns(self, results):
        assert who_did(found_line(results, "h2d pinned", "alone")) == "2 alone"
        assert who_did(found_line(results, "h2d pinned", "at once")) == "2 at once"
        assert who_did(found_line(results, "copy to a peer", "pair")) == "2 pairs"
        line = found_line(results, "all-reduce, captured", "at once", host_only=True)
        assert line.num_bytes == 1024 * MIB
        assert math.isclose(line.busbw_bytes_per_s, 20e9, rel_tol=0.01)  # 2(n-1)/n is 1 with two
        assert line.low_s <= line.seconds <= line.high_s
        console = Console(width=200, file=io.StringIO())
        for table in render_transfers(results):
            console.print(table)
        shown = console.file.getvalue()
        assert max(map(len, (line.rstrip() for line in shown.splitlines()))) <= 80
        assert shown.startswith("Transfers: 2 GPUs, 4 threads each")
        assert "h2d pageable" in shown
        assert ("host-only" in shown, "64 KiB" in shown) == (True, False)

    def test_sentence_names_copies_and_all_reduce_and_the_page_shows_it(self, links, report, results):
        (sentence,) = texts_of(transfer_findings(results))
        assert sentence.startswith("One GPU alone copies 52.")
        assert "with all 2 at once, each copies 26." in sentence
        said = "2 GPUs without peer access reach a bus bandwidth of 20.0 GB/s in an all-reduce of 1 GiB"
        assert said in sentence
        page = report.page.read_text()
        assert "Transfers: 2 GPUs, 4 threads each" in page
        assert "One GPU alone copies" in page
        assert 'aria-label="bandwidth: Transfers' in page
        assert "something was left out (transfer x 2)" in page
        names = {path.name for path in (links.folder.path / "figures").iterdir()}
        assert names == {f"bandwidth-{what}-cuda-2x4.svg" for what in FAMILIES}

    def test_figure_has_a_line_for_each_operation_of_several_sizes_and_at_most_six_stand_out(self, results):
        (group,) = transfer_groups(results)
        lines = bandwidth_lines(group, ("peer_copy", "send", "swap", "shift", "all_reduce", "h2d"))
        standing = standing_out(lines)
        assert len({line.what.operation for line in standing}) <= 3
        assert len(standing) == len({(line.what.operation, line.host_only) for line in standing}) <= 6
        for line in standing:
            kind = line.what.operation, line.host_only
            same = [one.busbw[-1] for one in lines if (one.what.operation, one.host_only) == kind]
            assert line.busbw[-1] == max(same)
        (group,) = transfer_groups(results)
        found = {line.label: line for line in bandwidth_lines(group, ("h2d", "all_reduce"))}
        copies = [
            f"h2d {memory}{link}, 2 {who}"
            for memory in ("pinned", "pageable")
            for link in ("", ", host-only")
            for who in ("alone", "at once")
        ]
        reductions = [
            f"all-reduce{how}{link}, 2 at once" for how in ("", ", captured") for link in ("", ", host-only")
        ]
        assert set(found) == {*copies, *reductions}
        line = found["all-reduce, captured, host-only, 2 at once"]
        assert line.sizes_bytes[-1] == 1024 * MIB
        assert math.isclose(line.busbw[-1], 20.0, rel_tol=0.01)
        assert all(low <= own <= high for low, own, high in zip(line.low, line.busbw, line.high, strict=True))

    def test_failed_cell_is_listed(self, study):
        add(study, ["no luck"], cell())
        assert "no luck" in write_report(study.folder).page.read_text()
        (row,) = status_table(study.folder)
        expected = ("transfer", "failed", "no luck", None)
        assert (row["kind"], row["state"], row["reason"], row["aggregator"]) == expected
        assert not (study.folder.path / "transfers.csv").exists()


class TestMachineFile:
    def test_it_is_what_the_probe_would_have_made(self, links, report):
        topology = load(links.folder.path / "probed.yaml")
        assert topology.num_gpus == 2
        pcie = next(one for one in topology.machine.links if one.id == "cpu0-gpu1")
        assert math.isclose(pcie.bandwidth_bytes_per_s, 55e9 / 1.05, rel_tol=0.06)
        source = topology.sources["pcie5-x16.bandwidth_bytes_per_s"]
        said = "measured by scaling run on 2025-03-01, 2 GPUs, torch 2.11.0, NCCL 2.28.9, 256 MiB"
        assert source.startswith(said)
        assert math.isclose(topology.machine.message_latency_s["staged"], 20e-6 - 0.7e-6, rel_tol=0.02)

    @pytest.mark.usefixtures("without_figures")
    @pytest.mark.parametrize(("factor", "other"), [
        (3.0, {"peer_access": False}),  # launches without access give messages alone
        (2.0, {"world_size": 1}),  # the largest world size decides
    ])  # fmt: skip
    def test_figures_are_those_of_the_largest_launch_with_access(self, study, factor, other):
        add(study, [lines(count=3)], cell())
        add(study, [lines(other.get("peer_access", True), factor=factor, count=3)], cell(**other))
        write_report(study.folder)
        topology = load(study.folder.path / "probed.yaml")
        assert math.isclose(topology.machine.by_id["cpu0"].reduce_bytes_per_s, 10e9, rel_tol=0.05)


@pytest.mark.parametrize(("rows", "message"), [
    ([{"sample": {"operation": "h2d"}}], "rank0.jsonl, line 1 is damaged: sample.launch is missing"),
    ([{}, {"sample": 3}], "rank0.jsonl, line 2 is damaged: sample is 3"),
    ([{"facts": {}}], "rank0.jsonl, line 1 is damaged: facts.device is missing"),
    ([{"note": "none"}], "nothing that it measured was recorded"),
])  # fmt: skip
def test_damaged_samples_are_an_error_that_names_the_file(study, rows, message):
    add(study, [rows], cell())
    with pytest.raises(StoreError, match=message):
        write_report(study.folder)
