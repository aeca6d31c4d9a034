"""`scaling predict`, `plan --skip-dominated`, `schedule export` and `topology import`."""

import json

import pytest
import yaml

from scaling.analysis.summary import summary_table
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from tests.made_studies import StudyFolder

OWN = {"kind": "own", "device": "cpu", "world_size": 1}

STUDY = """
name: small
device: {device}
workloads:
  - {{model: mlp, dataset: digits, global_batch: 96}}
aggregators: [none, all_reduce, ring, host_serial]
world_sizes: [1, 2, 4]
scaling: strong
missing_devices: drop
noise_pair: false
max_seconds: 5
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(STUDY.format(device="auto"))
    return path


def cells_of(study, *changes):
    return resolve(load_study(str(study), changes), AvailableMachine(4, 16)).trained


def single_worker(study, *changes):
    return next(one for one in cells_of(study, *changes) if (one.world_size, one.aggregator) == (1, "none"))


@pytest.fixture
def results(tmp_path, study):
    """World size 1 as if measured on GPUs."""
    folder = StudyFolder(tmp_path / "results")
    folder.add_steps([[0.010, 0.0101, 0.0099]], **single_worker(study).to_dict())
    folder.folder.write_environment({"gpus": [{"name": "NVIDIA H200"}], "cpu": {}})
    return folder.folder.path


def predicted(call, *arguments):
    return json.loads(call.printed("predict", *arguments, "--json"))


def test_json_is_an_array_with_one_simulated_object_a_cell(call, study, results):
    rows = predicted(call, study, "--topology", "hgx-h200-4", "--world-sizes", "1,2,4", "--from", results)
    assert len(rows) == 12
    assert all(row["simulated"] is True for row in rows)
    ring = {row["world_size"]: row for row in rows if row["aggregator"] == "ring"}
    assert ring[1]["iteration_s"] == pytest.approx(0.010, rel=0.02)
    assert ring[4]["speedup"] > ring[2]["speedup"] > 1
    assert ring[4]["iteration_s_low"] < ring[4]["iteration_s"] < ring[4]["iteration_s_high"]
    assert any("middle between" in note for note in ring[4]["notes"])


@pytest.mark.parametrize("more", [["--what-if", "nvlink4.bandwidth=2x"], ["--json"]])
def test_processors_steps_price_no_gpu(call, study, results, more):
    on = ("device=cpu", "--topology", "hgx-h200-4", "--from", results)
    said = "nothing was predicted: a step computed by the processor"
    assert said in call.refused("predict", study, *on, "--world-sizes", "4", *more)
    assert "say device=cuda" in call.refused("plan", study, *on, "--skip-dominated")


def test_more_workers_than_the_machine_has_exit_with_2_and_an_offer(call, study):
    for sizes, expected in (("64", 2), ("8,64", 0)):
        on = ("--topology", "hgx-h200", "--world-sizes", sizes)
        code, _, err = call("predict", study, *on, "device=cuda")
        assert (code, "hgx-h200-x16-infiniband" in err) == (expected, True)
    assert "64 workers were not predicted: hgx-h200 has 8 GPUs" in err


def test_what_narrows_most_is_said_and_its_study_resolves(call, study, results, tmp_path):
    path = tmp_path / "next.yaml"
    arguments = ("--topology", "hgx-h200-4", "--world-sizes", "4", "--from", results, "--measure-next", path)
    out = call.printed("predict", study, *arguments)
    (line,) = [line for line in out.splitlines() if line.startswith("narrows most: measure ")]
    (cell,) = cells_of(path)
    assert f"measure {cell.aggregator_label} of" in line
    assert f"on {cell.world_size} worker" in line


def test_overlapped_cells_of_one_worker_have_nothing_to_hide(call, study, tmp_path):
    changes = ("step=overlapped", "aggregators=[none, all_reduce, ring]")
    folder = StudyFolder(tmp_path / "overlapped")
    folder.add_steps([[0.010, 0.0101, 0.0099]], **single_worker(study, *changes).to_dict())
    words = ("--topology", "hgx-h200-4", "--world-sizes", "1,4")
    rows = predicted(call, study, *changes, *words, "--from", folder.folder.path)
    alone = [row for row in rows if row["world_size"] == 1 and row["aggregator"] in ("all_reduce", "ring")]
    assert [row["exposed_comm_s"] for row in alone] == [0, 0]
    assert [row["iteration_s"] for row in alone] == pytest.approx([0.010, 0.010], rel=0.02)
    together = [row for row in rows if row["world_size"] == 4 and row["aggregator"] != "none"]
    assert [row["exchange_s"] > 0 for row in together] == [True, True]


def test_without_results_there_is_communication_alone_and_what_if_changes_what_uses_the_link(call, study):
    arguments = (study, "--topology", "hgx-h200-4", "--world-sizes", "4")
    rows = predicted(call, *arguments)
    assert all(row["iteration_s"] is None and row["compute_s"] is None for row in rows)
    before = {row["aggregator"]: row["exchange_s"] for row in rows}
    expected = {"none": False, "all_reduce": True, "ring": True, "host_serial": True}
    assert {name: seconds > 0 for name, seconds in before.items()} == expected
    after_rows = predicted(call, *arguments, "--what-if", "nvlink.latency=1e-3")
    after = {row["aggregator"]: row["exchange_s"] for row in after_rows}
    assert after["ring"] > 2 * before["ring"]
    assert after["host_serial"] == before["host_serial"]
    assert "nvlink.latency=1e-3" in after_rows[0]["topology"]


def test_sizes_that_cannot_be_are_told_and_the_others_predicted(call, study):
    rows = predicted(call, study, "--topology", "hgx-h200-x16-infiniband", "--world-sizes", "8,64,1024")
    reasons = [row["reason"] for row in rows if "reason" in row]
    assert any("does not divide" in reason for reason in reasons)
    assert any("places" in reason for reason in reasons)
    assert {row["world_size"] for row in rows if "reason" not in row} == {8}
    assert all(row["simulated"] is True for row in rows)


@pytest.mark.parametrize("name", ["tensorflow", "mxnet_local", "torch_cpu", "host_serial", "tf_spec"])
def test_what_shares_one_hosts_memory_is_not_priced_on_several(call, study, name):
    sizes = ("--topology", "hgx-h200-x2-infiniband", "--world-sizes", "8,16")
    one, several = predicted(call, study, f"aggregators=[{name}]", *sizes)
    assert one["exchange_s"] > 0
    assert name in several["reason"]
    assert "does not run there; ask for up to 8 ranks" in several["reason"]


@pytest.mark.parametrize(("aggregators", "machine", "refused", "others"), [
    # A transport that the machine does not have is not priced.
    ("ring, {name: ring, transport: peer_memory}", "dual-k80", [("ring(transport=peer_memory)", 4)],
     {("ring", 2), ("ring", 4), ("ring(transport=peer_memory)", 2)}),
    ("all_reduce, rings, ring", "hgx-h200-4", [("rings", 2), ("rings", 4)],
     {(name, size) for name in ("all_reduce", "ring") for size in (2, 4)}),
])  # fmt: skip
def test_one_aggregator_that_cannot_be_does_not_stop_the_others(
    call, study, aggregators, machine, refused, others
):
    on = ("--topology", machine, "--world-sizes", "2,4")
    rows = predicted(call, study, f"aggregators=[{aggregators}]", *on)
    found = {(row["aggregator"], row["world_size"]): row.get("reason") for row in rows}
    assert {name for name, reason in found.items() if not reason} == others
    assert [name for name, reason in found.items() if reason] == refused
    assert all(name[0].partition("(")[0] in found[name] for name in refused)


def test_table_says_that_nothing_is_measured(call, study):
    out = call.printed("predict", study, "--topology", "hgx-h200-4", "--world-sizes", "2", "--best-order")
    assert out.startswith("simulated on hgx-h200-4")
    assert "ring, 2 ranks" in out


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "--topology"),
    (("--topology", "hgx-h200-4", "--world-sizes", "two"), "--world-sizes"),
    (("--topology", "nowhere"), "nowhere"),
    (("--topology", "hgx-h200-4", "--from", "nothing"), "no results folder"),
    (("--topology", "hgx-h200-4", "--what-if", "gpus"), "no value"),
])  # fmt: skip
def test_bad_input_is_one_message_and_exit_code_2(call, study, arguments, message):
    assert message in call.refused("predict", study, *arguments)


def test_world_sizes_of_a_huge_machine_are_predicted_only_where_they_are_named(call):
    arguments = ("predict", "mnist", "--topology", "hgx-h200-x16-infiniband", "--what-if", "nodes=1024")
    err = call.refused(*arguments)
    assert "above 128" in err
    assert "give --world-sizes" in err
    assert call(*arguments, "--world-sizes", "2")[0] == 0


def plan(call, study, results, *arguments):
    return call("plan", study, "--from", results, "--topology", "hgx-h200-4", *arguments)


def test_plan_keeps_baselines_and_leaves_what_cannot_win_or_is_beyond_a_budget(call, study, results):
    code, out, _ = plan(call, study, results, "--skip-dominated", "--json")
    verdicts = json.loads(out)
    assert (code, len(verdicts), all(one["reason"] for one in verdicts)) == (0, 12, True)
    assert sum(", none," in one["cell"] for one in verdicts if one["measure"]) == 3
    verdicts = json.loads(plan(call, study, results, "--skip-dominated", "--budget", "30s", "--json")[1])
    left = [one["reason"] for one in verdicts if not one["measure"]]
    assert any("no time left of 30 s" in reason for reason in left)
    assert len(left) < len(verdicts)
    for budget in ("10", "m", "ten minutes"):
        code, _, err = plan(call, study, results, "--budget", budget)
        assert (code, "10m" in err) == (2, True), "a budget has a number and a unit"


def test_plan_writes_a_study_of_the_same_cells(call, study, results, tmp_path):
    path = tmp_path / "less.yaml"
    code, out, _ = plan(call, study, results, "--budget", "2m", "--write", path, "--json")
    assert code == 0
    kept = {one["cell_id"] for one in json.loads(out) if one["measure"]}
    found = resolve(load_study(str(path)), AvailableMachine(4, 64))
    assert ({cell.id for cell in found.trained}, yaml.safe_load(path.read_text())["name"]) == (kept, "small")


def test_schedules_are_exported_and_measurements_imported(call, tmp_path):
    assert call("schedule", "export", "ring", "--world-size", "4", "--out", tmp_path / "ring.xml")[0] == 0
    assert (tmp_path / "ring.xml").read_text().startswith("<algo")
    chakra = ("--format", "chakra", "--out", tmp_path / "ring")
    assert call("schedule", "export", "ring", "--world-size", "2", *chakra)[0] == 0
    assert sorted(path.name for path in tmp_path.glob("*.et")) == ["ring.0.et", "ring.1.et"]
    for text, said in (
        ("{}", "neither nccl-tests nor nvbandwidth nor OSU"),
        ("<system version='1'></system>", "--machine takes nvbandwidth's output, which measures links"),
        ('{"results": [], "args": ["x"]}', "one rank alone exchanges nothing"),
    ):
        (tmp_path / "other.json").write_text(text)
        on = ("--machine", "hgx-h200-4") if text != "{}" else ()
        assert said in call.refused("topology", "import", tmp_path / "other.json", *on)


def test_a_launch_is_predicted_once_and_before_it_is_measured(results, study):
    from scaling.study.launches import Launch, Settings
    from scaling.study.session import PreLaunchPrediction
    from topologies.schema import shipped

    folder = ResultsFolder(results)
    (results / "topology.yaml").write_text(shipped()["hgx-h200-4"])
    cells = [one for one in cells_of(study) if one.world_size == 2]
    launch = Launch(Settings.of(cells[0]), 0, cells)
    before = summary_table(folder)
    assert PreLaunchPrediction(folder, print).predict(launch) == 4
    assert {row["cell_id"] for row in folder.predictions()} == {cell.id for cell in cells}
    assert PreLaunchPrediction(folder, print).predict(launch) == 0
    assert summary_table(folder).equals(before)
    (results / "topology.yaml").write_text("nonsense")
    (results / "predictions.json").unlink()
    said = []
    PreLaunchPrediction(folder, said.append)(launch)
    assert "not predicted" in said[0]


@pytest.fixture
def curves(tmp_path, study):
    """Further local batches at world size 1, measured by another version of torch under Open MPI."""
    folder = StudyFolder(tmp_path / "curves")
    single = single_worker(study)
    for batch, seconds in ((24, 0.004), (48, 0.006)):
        folder.add_steps([[seconds] * 3], **{**single.to_dict(), "local_batch": batch, "global_batch": batch})
    folder.folder.write_environment(
        {"gpus": [{"name": "NVIDIA H200"}], "cpu": {}, "versions": {"torch": "2.99"}}
    )
    return folder.folder.path


def test_folders_of_different_environments_are_taken_together_and_it_is_said(call, study, results, curves):
    known = {"gpus": [{"name": "NVIDIA H200"}], "cpu": {}, "versions": {"torch": "2.11"}}
    ResultsFolder(results).write_environment(known)
    arguments = ("predict", study, "--topology", "hgx-h200-4", "--world-sizes", "1,2,4", "--json")
    code, out, err = call(*arguments, "--from", results, "--from", curves)
    assert (code, "different environments" in err) == (0, True)
    assert "versions.torch: 2.11 against 2.99" in err
    times = {row["world_size"]: row for row in json.loads(out) if row["aggregator"] == "none"}
    assert times[4]["iteration_s"] == pytest.approx(0.004)  # from the second folder
    assert times[1]["iteration_s"] == pytest.approx(0.010, rel=0.02)  # from the first
    assert not any("extrapolated" in note for row in times.values() for note in row["notes"])
    _, _, alone = call(*arguments, "--from", results)
    assert "different environments" not in alone


def test_nvbandwidths_figures_go_into_a_machine_file_that_predictions_take(call, study, tmp_path):
    from topologies.schema import load

    copies = {"host_to_device_memcpy_ce": "12.5", "device_to_host_memcpy_ce": "11"}
    cases = [{"name": name, "bandwidth_matrix": [[rate] * 4]} for name, rate in copies.items()]
    source = tmp_path / "copies.json"
    source.write_text(json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": cases}}))
    own = tmp_path / "own.yaml"
    assert call("topology", "import", source, "--machine", "hgx-h200-4", "--out", own)[0] == 0
    assert {link.bandwidth_bytes_per_s for link in load(own).machine.links if link.kind == "pcie"} == {12.5e9}
    exchange_s = {
        machine: {
            row["aggregator"]: row["exchange_s"]
            for row in predicted(call, study, "--topology", machine, "--world-sizes", "4")
        }
        for machine in ("hgx-h200-4", own)
    }
    before, after = exchange_s.values()
    assert after["host_serial"] > 1.005 * before["host_serial"]
    assert after["ring"] == before["ring"]


def test_the_mpi_of_the_measured_launches_is_that_of_the_prediction(call, tmp_path):
    from scaling.prediction.calibration_data import libraries_of
    from scaling.store import RunRecord

    folder = StudyFolder(tmp_path / "measured").folder
    for number, words in enumerate(("MPICH Version: 5.0.2", "Open MPI v5.0.11")):
        folder.write_run(RunRecord(f"{number:012x}", 0, OWN, launch={"mpi": words}))
    folder.write_run(RunRecord("f" * 12, 0, OWN, launch={"horovod": "Horovod 0.28.1 over MPI"}))
    libraries, notes = libraries_of([folder])
    assert libraries == {"mpi": "MPICH Version: 5.0.2", "horovod": "Horovod 0.28.1 over MPI"}
    assert any("several libraries" in note for note in notes)
