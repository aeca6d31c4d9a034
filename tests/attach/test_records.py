"""An attached script's folder, from runs that are made up: what is recommended of it."""

import json

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.attach import study
from scaling.attach.launch import Run
from scaling.attach.records import AttachedFolder, script_name
from scaling.errors import PredictionError
from scaling.prediction.calibration_data import MeasuredFolder
from tests.attach.made_marks import made_rank, pair

SECONDS = {"baseline": 0.10, "aa": 0.10, "no_exchange": 0.05, "cached_input": 0.08, "one_worker": 0.04}


def attached(path, **options):
    return AttachedFolder(path / "out", ["torchrun", "train.py"], options)


@pytest.fixture
def folder(tmp_path):
    made = attached(tmp_path)
    for launch in range(3):
        for position, (arm, step_s) in enumerate(SECONDS.items()):
            ranks = [
                made_rank(at, [step_s * (1 + launch / 100)] * 6)
                for at in range(1 if arm == "one_worker" else 2)
            ]
            facts = {"world_size": len(ranks), "gradients": [[4, 3], [3]], "threads": 1}
            made.add(launch, position, Run(arm, [{**rank, **facts} for rank in ranks]))
    return made.folder


def test_arms_are_no_choices_and_each_is_named_by_itself(folder):
    cells = read_cells(folder)
    (found,) = recommend(build_table("out", cells), cells)
    assert (found.choice.row["arm"], found.rivals) == ("baseline", [])
    assert found.runner_up is None
    (group,) = group_rows(to_rows(build_table("out", cells)))
    assert {group.name(row) for row in group.rows} == set(SECONDS) - {"aa"}


def test_other_numbers_of_workers_are_predicted_from_them(folder, call):
    words = ("predict", folder.path, "--topology", "cpu-2", "--world-sizes", "1,2,4", "--json")
    one, two, four = json.loads(call.printed(*words))
    assert one["iteration_s"] == pytest.approx(SECONDS["one_worker"], rel=0.05)
    assert two["iteration_s"] == pytest.approx(SECONDS["baseline"], rel=0.15)
    assert two["speedup"] == pytest.approx(2 * one["iteration_s"] / two["iteration_s"])
    assert "2 places" in four["reason"]


@pytest.mark.parametrize(("host_only", "nvlink_s", "host_s"), [(True, 0.010, 0.012), (False, 0.012, 0.010)])
def test_an_exchange_calibrates_the_links_it_was_measured_on(tmp_path, call, host_only, nvlink_s, host_s):
    made = attached(tmp_path)
    gradients = [[2048, 1024], [1024, 1024]]
    for launch in range(2):
        for arm, step_s in (("baseline", 0.012), ("aa", 0.012), ("no_exchange", 0.010)):
            facts = {"device": "cuda", "host_only": host_only, "gradients": gradients, "bucket_mb": 25.0}
            ranks = [{**made_rank(at, [step_s] * 6), **facts, "world_size": 2} for at in range(2)]
            made.add(launch, 0, Run(arm, ranks))

    def predicted(*options):
        code, out, err = call("predict", made.folder.path, "--topology", "hgx-h100", "--json", *options)
        assert (code, "NCCL_P2P_DISABLE" in err) == (0, host_only and not options), err
        return json.loads(out)[0]["iteration_s"]

    assert predicted() == pytest.approx(nvlink_s, rel=0.03)
    assert predicted("--what-if", "peer_access=off") == pytest.approx(host_s, rel=0.03)


def test_the_answer_is_in_the_notes_of_the_page(tmp_path):
    made = attached(tmp_path, steps=30)
    made.finish(["Slow rank: none."])
    written = made.folder.study()
    assert written["notes"] == ["steps of the user's own script: torchrun train.py", "Slow rank: none."]
    assert written["parts"] == [{"kind": "attached", "command": "torchrun train.py", "steps": 30}]


def test_what_an_interruption_left_out_is_said(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(study._Session, "run", interrupted)
    monkeypatch.setattr(study.signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    plan = study.AttachPlan(["torchrun", "train.py"], ["baseline"], 1, 5, 1, 10.0)
    (line,), code = study.attach(plan, tmp_path / "out", lambda _: None)
    assert (code, line) == (130, "Not measured, because the runs were interrupted before.")


def test_a_step_of_several_batches_has_the_samples_of_all_and_of_several_updates_no_prediction(tmp_path):
    made = attached(tmp_path)
    ranks = pair([0.1] * 6, [(4, 4, 0, 1)] * 6)
    made.add(0, 0, Run("baseline", [{**rank, "gradients": [[3]]} for rank in ranks]))
    (record,) = made.folder.runs()
    assert (record.cell["local_batch"], record.cell["global_batch"]) == (32, 64)
    assert record.cell["dataset_label"] == "script"
    made = attached(tmp_path / "optimizers")
    ranks = [{**made_rank(at, [0.1] * 6, [(1, 1, 0, 6)] * 6), "gradients": [[3]]} for at in range(2)]
    made.add(0, 0, Run("baseline", ranks))
    with pytest.raises(PredictionError, match="has 6 steps of optimizers"):
        MeasuredFolder(made.folder).cells()


@pytest.mark.parametrize(
    ("step_s", "backward", "is_same"), [(0.09, 2, True), (0.09, 4, False), (0.16, 2, False)]
)
def test_one_worker_that_does_other_work_is_no_reference(tmp_path, step_s, backward, is_same):
    """As of a script that divides its accumulation, or a batch that nothing shows, by the workers."""
    made = attached(tmp_path)
    for arm, seconds, passes, count in (("baseline", 0.1, 2, 2), ("one_worker", step_s, backward, 1)):
        ranks = [made_rank(at, [seconds] * 6, [(passes, 0, 0, 1)] * 6) for at in range(count)]
        facts = {"world_size": count, "gradients": [[3]], "threads": 1, "batches": []}
        made.add(0, 0, Run(arm, [{**rank, **facts} for rank in ranks]))
    rows = to_rows(build_table("out", read_cells(made.folder)))
    (speedup,) = [row["speedup"] for row in rows if row["arm"] == "baseline"]
    assert (speedup is not None) == is_same, speedup


@pytest.mark.parametrize(("command", "name"), [
    ("torchrun --nproc-per-node=2 code/train.py --config a.py", "train.py"),
    ("torchrun -m pkg.train --config cfg.yaml", "pkg.train"),
    ("python -m torch.distributed.run --module pkg.train -n 3", "pkg.train"),
    ("python -m torch.distributed.run train.py", "train.py"),
    ("./train.sh", "./train.sh"),
])  # fmt: skip
def test_a_result_is_named_after_what_the_command_starts(command, name):
    assert script_name(command.split()) == name


def test_its_study_is_of_a_registered_kind_and_run_says_what_measures_it(folder, call):
    said = "kind: attached is measured by `scaling attach -- torchrun train.py`"
    assert said in call.refused("run", folder.path / "study.yaml")
