"""Nothing that a results folder holds is imported, called or evaluated, and nothing is written outside of it.

A folder as a stranger may hand it over: every text in it is something that does harm where it is executed.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling.bucket import BucketLayout
from scaling.errors import StoreError
from scaling.report.exports import FORMATS
from scaling.report.figures.draw import draw_figures
from scaling.store import ResultsFolder
from scaling.study import predicting
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from tests.made_studies import StudyFolder
from tests.received_folder import received_folder

OF_THE_FORM = {
    *("cell_id", "kind", "state", "step", "device", "scaling", "input_placement", "batch_norm"),
    *("augmentation", "memory_format", "operation", "phase", "fact", "launch", "memory", "spans"),
    *("started_at", "finished_at", "schedule", "learning_rate_rule", "warmup_end", "stop_reason"),
}
"""Keys that have one of a few words: with another one a verb refuses before it comes to the rest."""

STUDY = """
name: own
device: cuda
workloads:
  - {model: fcn-r, dataset: synthetic, global_batch: 4096}
aggregators: [none, all_reduce, ring]
world_sizes: [1, 2]
scaling: strong
step: overlapped
noise_pair: false
max_seconds: 5
"""


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few cells of each kind, of committed results."""
    return received_folder(tmp_path_factory.mktemp("committed") / "received").path


@pytest.fixture
def folder(committed: Path, tmp_path: Path) -> ResultsFolder:
    """The same, to be changed, in a folder of its own."""
    shutil.copytree(committed, tmp_path / "stranger" / "received")
    return ResultsFolder(tmp_path / "stranger" / "received")


def planted(value: Any, text: str, key: str = "") -> Any:
    """`value` with every text replaced, but for those that are of the form."""
    if key == "facts":
        return value
    if isinstance(value, dict):
        return {name: planted(item, text, name) for name, item in value.items()}
    if isinstance(value, list):
        return value if key in ("spans", "facts") else [planted(item, text, key) for item in value]
    return text if isinstance(value, str) and key not in OF_THE_FORM else value


def plant(folder: ResultsFolder, text: str) -> None:
    """Puts the text into every file of the folder."""
    for path in sorted(folder.path.rglob("*")):
        if path.suffix == ".json":
            path.write_text(json.dumps(planted(json.loads(path.read_text()), text)))
        elif path.suffix == ".jsonl":
            lines = [json.dumps(planted(json.loads(line), text)) for line in path.read_text().splitlines()]
            path.write_text("".join(f"{line}\n" for line in lines))
        elif path.suffix == ".yaml":
            path.write_text(yaml.safe_dump(planted(yaml.safe_load(path.read_text()), text)))


def change_records(folder: ResultsFolder, change: Callable[[dict[str, Any]], None]) -> None:
    """Lets `change` change what every run.json holds."""
    for path in sorted(folder.path.glob("runs/*/*/run.json")):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))


def verbs(folder: Path, study: Path) -> Iterator[tuple[object, ...]]:
    """Every verb that reads a results folder."""
    yield from ((verb, folder) for verb in ("status", "recommend", "explain", "report"))
    yield from (("export", folder, "--format", name) for name in FORMATS)
    yield ("compare", folder, folder)
    yield ("predict", study, "--topology", "hgx-h200-4", "--from", folder)
    yield ("plan", study, "--skip-dominated", "--from", folder, "--topology", "hgx-h200-4")
    yield ("report", folder, "--markdown")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that whatever is executed makes; `planted_marker` makes it when it is imported or called."""
    path, modules = tmp_path / "executed", tmp_path / "modules"
    modules.mkdir()
    (modules / "planted_marker.py").write_text(
        f"import pathlib\n\ndef touch(*_, **__):\n    pathlib.Path({str(path)!r}).touch()\n\ntouch()\n"
    )
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield path
    sys.modules.pop("planted_marker", None)


@pytest.fixture
def own_study(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(STUDY)
    return path


def files_outside(folder: Path) -> dict[Path, bytes]:
    everything = (path for path in folder.parents[1].rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in everything if not path.is_relative_to(folder)}


TEXTS = {
    "module": "planted_marker:touch",
    "text": "$(touch {mark}) `touch {mark}`; touch {mark} | __import__('os').system('touch {mark}') {{0}} "
    "{{{{ cycler.__init__.__globals__.os.system('touch {mark}') }}}} {{% raw %}} $\\input{{{mark}}} \\frac$ "
    "<script>alert(1)</script> [link=file:///]",
    "path": "../../executed",
}


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of the folder, which are the same in every report, are drawn by the first one alone."""
    drawn = [False]

    def draw_first(*of_report: Any) -> Any:
        is_drawn, drawn[0] = drawn[0], True
        return ([], []) if is_drawn else draw_figures(*of_report)

    monkeypatch.setattr("scaling.report.write.draw_figures", draw_first)


@pytest.mark.usefixtures("drawn_once")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "archived"), [*((kind, False) for kind in TEXTS), ("text", True)])
def test_no_text_of_a_folder_is_executed_by_any_verb(call, folder, mark, own_study, kind, archived):
    plant(folder, TEXTS[kind].format(mark=shlex.quote(str(mark))) if kind == "text" else TEXTS[kind])
    if archived:
        assert call("export", folder.path, "--archive")[0] == 0
    before, read = files_outside(folder.path), set()
    for words in verbs(folder.path, own_study):
        code, _, err = call(*words)
        assert "Traceback" not in err
        assert files_outside(folder.path) == before, words
        read |= {words[0]} if code == 0 else set()
    assert not mark.exists()
    assert "planted_marker" not in sys.modules
    assert read >= {"status", "report", "export", "predict", "explain"}
    if archived:
        assert call("export", folder.path, "--unarchive")[0] == 0
        assert not mark.exists()


@pytest.mark.parametrize("key", ["model", "dataset", "aggregator"])
def test_no_function_that_is_named_as_a_component_is_called(call, folder, mark, own_study, key):
    def name_it(content: dict[str, Any]) -> None:
        content["cell"][key] = "os:system"
        content["cell"][f"{key}_parameters"] = {"command": f"touch {shlex.quote(str(mark))}"}

    change_records(folder, name_it)
    for words in verbs(folder.path, own_study):
        if words[0] in ("predict", "plan"):
            code, _, err = call(*words)
            assert code == 0
            assert f"{key.replace('dataset', 'data set')} 'os:system' is code" in err
    assert not mark.exists()


@pytest.mark.parametrize("key", ["kind", "state", "step", "device", "scaling"])
def test_no_text_in_place_of_a_word_of_the_form_is_executed(call, folder, mark, own_study, key):
    def name_it(content: dict[str, Any]) -> None:
        (content if key == "state" else content["cell"])[key] = TEXTS["module"]

    change_records(folder, name_it)
    for words in verbs(folder.path, own_study):
        if words[0] in ("status", "predict", "recommend"):
            call(*words)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["study.yaml", "topology.yaml", "probed.yaml"])
def test_tags_of_yaml_are_not_followed(call, folder, mark, own_study, name):
    path = folder.path / name
    kept = path.read_text() if path.exists() else ""
    for tag in ("object/apply:os.system", "object/new:os.system", "name:planted_marker.touch"):
        path.write_text(f"{kept}\nextra: !!python/{tag} ['touch {mark}']\n")
        for words in verbs(folder.path, own_study):
            if words[0] in ("plan", "predict") or name == "study.yaml":
                call(*words)
    assert not mark.exists()


class TestPlaces:
    """Names of files that results give."""

    @pytest.mark.parametrize("cell_id", ["../../secret", "/etc", "..", "a/b", ""])
    def test_id_of_a_run_that_is_a_path_is_refused(self, folder, cell_id):
        path = next(folder.path.glob("runs/*/0/run.json"))
        path.write_text(json.dumps({**json.loads(path.read_text()), "cell_id": cell_id}))
        with pytest.raises(StoreError, match=r"run\.json is damaged: cell_id"):
            folder.runs()

    def test_record_of_another_run_is_refused(self, folder):
        first, second, *_ = sorted(folder.path.glob("runs/*/0/run.json"))
        first.write_text(second.read_text())
        with pytest.raises(StoreError, match=f"is of run {second.parts[-3]}/0"):
            folder.runs()

    @pytest.mark.parametrize("experiment", ["/../../../outside/x", "results"])
    def test_experiment_names_no_file_and_no_module(self, call, folder, experiment):
        for path in folder.path.glob("runs/*/*/run.json"):
            if json.loads(path.read_text())["cell"]["kind"] != "device":
                shutil.rmtree(path.parent)
        change_records(folder, lambda content: content["cell"].update({"experiment": experiment}))
        before = files_outside(folder.path)
        assert call("report", folder.path)[0] in (0, 2)
        assert files_outside(folder.path) == before

    def test_figures_are_not_written_through_a_link(self, call, folder, tmp_path):
        (tmp_path / "own").mkdir()
        (folder.path / "figures").symlink_to(tmp_path / "own")
        code, _, err = call("report", folder.path)
        assert (code, list((tmp_path / "own").iterdir())) == (2, [])
        assert "outside of the results folder" in err

    def test_a_file_that_is_a_link_is_replaced_and_not_followed(self, call, tmp_path):
        study = StudyFolder(tmp_path / "by-hand")
        for size in (1, 2):
            study.add_steps([[0.02 / size] * 4] * 2, world_size=size)
        folder, precious = study.folder, tmp_path / "precious"
        precious.write_text("mine")
        assert call("report", folder.path)[0] == 0
        assert list(folder.path.glob("figures/*"))
        for made in [*folder.path.glob("figures/*"), *folder.path.glob("*.csv"), folder.path / "report.html"]:
            made.unlink()
            made.symlink_to(precious)
        assert (call("report", folder.path)[0], precious.read_text()) == (0, "mine")


OWN = """
from scaling.aggregators.ring import Ring
from torch import nn


class Own(Ring):
    name = "own"


def net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))
"""


class TestOwnCode:
    """An aggregator and a model of a user's own, in the study and in the results that predict it."""

    @pytest.fixture
    def own(self, tmp_path, monkeypatch):
        """Cells of `own_parts:net` by `own_parts:Own` on one rank and two; the study that they are of."""
        (tmp_path / "own_parts.py").write_text(OWN)
        monkeypatch.syspath_prepend(str(tmp_path))
        path = tmp_path / "own.yaml"
        changed = {"aggregators": ["none", "own_parts:Own"], "step": "eager"}
        workload = {"model": "own_parts:net", "dataset": "digits", "global_batch": 64}
        path.write_text(yaml.safe_dump({**yaml.safe_load(STUDY), **changed, "workloads": [workload]}))
        folder = StudyFolder(tmp_path / "measured")
        for cell in resolve(load_study(str(path)), AvailableMachine(4, 16)).trained:
            folder.add_steps([[0.010, 0.0101, 0.0099]], **cell.to_dict())
        predicting._layouts.cache_clear()
        monkeypatch.setattr("scaling.registry._OWN_CODE", set())
        monkeypatch.delitem(sys.modules, "own_parts", raising=False)
        return folder.folder, path

    def predicted(self, call, study, folder):
        code, out, err = call("predict", study, "--topology", "hgx-h200-4", "--from", folder.path, "--json")
        assert code == 0
        return json.loads(out), err

    def test_study_that_names_it_is_predicted_and_calibrated(self, call, own):
        folder, path = own
        rows, err = self.predicted(call, path, folder)
        assert all(row["iteration_s"] for row in rows)
        assert "is not used" not in err

    @pytest.mark.parametrize(("shapes", "said"), [
        (None, "the exchange of 4 measured cells is not used: model 'own_parts:net' is code"),
        ("8x64 8 10x8 10", "of 2 measured cells is not used: aggregator 'own_parts:Own' is code"),
        ("8x-64 os:system", "tensor_shapes of its run are damaged: '8x-64' is no shape"),
    ], ids=["unknown", "recorded", "damaged"])  # fmt: skip
    def test_another_study_does_not_import_it_and_says_what_it_lacks(
        self, call, own, own_study, shapes, said
    ):
        folder, _ = own
        if shapes:
            change_records(folder, lambda content: content["summary"].update(tensor_shapes=shapes))
        rows, err = self.predicted(call, own_study, folder)
        assert "own_parts" not in sys.modules
        assert said in err
        assert shapes or "name it in your own study" in err
        assert "model 'own_parts" not in err or "aggregator 'own_parts" not in said  # recorded shapes will do
        assert not any("Traceback" in str(row) for row in rows)


def test_shapes_are_read_as_they_were_written():
    layout = BucketLayout.of([("a", (784, 2048)), ("b", (2048,)), ("c", ()), ("d", (0, 3))])
    assert layout.shapes_text() == "784x2048 2048 scalar 0x3"
    assert BucketLayout.of_shapes_text(layout.shapes_text()).shapes == layout.shapes
    assert BucketLayout.of_shapes_text(layout.shapes_text()).offsets == layout.offsets
