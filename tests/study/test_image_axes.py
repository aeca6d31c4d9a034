"""`augmentation` and `memory_format` of cells: what a study says of them, and what steps see."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from torch import nn

from scaling.errors import StudyError
from scaling.registry import trust
from scaling.store import ResultsFolder
from scaling.study.cell import TIMING_BATCHES, Cell
from scaling.study.overrides import load_study
from scaling.study.pruning import CellChoice, judge, study_of
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study
from scaling.training.step_check import StepCheck
from scaling.workloads.base import DataShape, Model, Split
from scaling.workloads.registry import create_dataset
from scaling.workloads.sampling import crop_and_flip, epoch_batches, epoch_variations
from tests.made import ABSENT, CPU, GPUS, WORKLOAD, made_cells, made_study, problem_of, resolved_study
from tests.study.test_run_cell import TIMED, TRAINED, group, losses, run, runner  # noqa: F401  # noqa: F401

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
DIGITS = {**WORKLOAD, "global_batch": 32}
BASE = {"workloads": [DIGITS], "aggregators": ["all_reduce"], "world_sizes": [1], "noise_pair": False}
study, cells, problem = partial(made_study, **BASE), partial(made_cells, **BASE), partial(problem_of, **BASE)


class TestKey:
    def test_none_is_what_cells_were_before_and_standard_is_another_cell_that_says_so(self):
        (plain,), (said,), (augmented,) = (
            cells(),
            *(cells(augmentation=one) for one in ("none", "standard")),
        )
        assert (plain.augmentation, said.augmentation, augmented.augmentation) == (None, None, "standard")
        older = plain.to_dict()
        del older["augmentation"]
        assert plain.id == said.id == Cell(**older).id != augmented.id
        assert augmented.describe() == f"{plain.describe()}, augmentation standard"

    @pytest.mark.parametrize(("of_part", "of_workload"), [("standard", "none"), ("none", "standard")])
    def test_a_workload_has_its_own(self, of_part, of_workload):
        own, other = {**DIGITS, "augmentation": of_workload}, {**DIGITS, "global_batch": 64}
        found = [cell.augmentation or "none" for cell in cells(workloads=[own, other], augmentation=of_part)]
        assert found == [of_workload, of_part]
        choice = {"first_available": [{**DIGITS, "augmentation": "standard"}]}
        assert [cell.augmentation for cell in cells(workloads=[choice])] == ["standard"]

    def test_parts_of_both_kinds_and_both_cells_of_an_a_a_pair_have_it(self):
        parts = [{"kind": "iteration", "noise_pair": False}, {"kind": "convergence"}]
        own = cells(augmentation="standard", parts=parts, noise_pair=ABSENT)
        kinds = [("iteration", "standard"), ("convergence", "standard")]
        assert [(one.kind, one.augmentation) for one in own] == kinds
        pair = resolved_study(**{**BASE, "augmentation": "standard", "noise_pair": True}).trained
        assert [(cell.aa_replicate, cell.augmentation) for cell in pair] == [(0, "standard"), (1, "standard")]

    @pytest.mark.parametrize("model", ["fcn-s", "lstm"], ids=["vectors", "tokens"])
    def test_data_that_are_no_images_are_refused(self, model):
        workload = {"model": model, "dataset": "synthetic", "global_batch": 4}
        said = problem(workloads=[workload], augmentation="standard")
        assert f"workload {workload['model']} on synthetic: augmentation: standard crops and mirrors" in said
        assert "use augmentation: none" in said
        assert problem(workloads=[{**workload, "augmentation": "standard"}]) == said

    @pytest.mark.parametrize(("key", "value", "said"), [
        ("augmentation", "standard", "augmentation is 'more'"),
        ("memory_format", "channels_last", "memory_format.0 is 'more'"),
    ])  # fmt: skip
    def test_other_values_and_parts_without_a_model_are_refused(self, key, value, said):
        assert said in problem(**{key: "more"})
        links = {"name": "links", "kind": "transfer", "world_sizes": 2, key: value}
        with pytest.raises(StudyError, match=f"'{key}' belongs to kind: iteration or convergence"):
            parse_study(links, "my.yaml")


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": [{"augmentation": "none"}, {"augmentation": "standard"}]},
        {"workloads": [DIGITS, {**DIGITS, "augmentation": "standard"}]},
        {"workloads": [DIGITS, {**DIGITS, "augmentation": "none"}], "augmentation": "standard"},
    ],
    ids=["of parts", "of a workload", "of a part, and not of a workload"],
)
def test_a_pruned_study_keeps_it(changes):
    whole = study(**changes)
    resolved = resolve(whole, CPU)
    assert {cell.augmentation for cell in resolved.trained} == {None, "standard"}
    for kept in (*([cell] for cell in resolved.trained), resolved.trained):
        verdicts = [CellChoice(cell, cell in kept, "", 0.0) for cell in resolved.trained]
        pruned = parse_study(yaml.safe_load(study_of(whole, verdicts, resolved)), "pruned.yaml")
        assert list(resolve(pruned, CPU).cells) == [cell.id for cell in kept]


def test_plain_steps_do_not_dominate_augmented_ones():
    plain, augmented = found = cells(workloads=[DIGITS, {**DIGITS, "augmentation": "standard"}])
    ends = {plain.id: (1e-3, 1.1e-3), augmented.id: (2e-3, 2.1e-3)}
    rows = [
        {"cell_id": name, "iteration_s": low, "iteration_s_low": low, "iteration_s_high": high}
        for name, (low, high) in ends.items()
    ]
    assert [one.keep for one in judge(found, rows, dict.fromkeys(ends, 1))] == [True, True]


@pytest.mark.parametrize("name", ["converge-fcn-4xh200", "converge-alexnet-4xh200", "budget-4xh200"])
def test_a_study_that_was_recorded_has_the_cells_that_it_had(name):
    folder = REFERENCE / name
    recorded = {record.cell_id for record in ResultsFolder(folder).runs()}
    own = parse_study(yaml.safe_load((folder / "study.yaml").read_text()), "study.yaml")
    found = resolve(own, GPUS)
    assert set(found.cells) == recorded
    assert any(cell.kind == "iteration" for cell in found.trained)


@pytest.mark.parametrize("name", ["converge-alexnet", "converge-resnet"])
def test_shipped_studies_time_the_steps_that_they_train(name):
    found = resolve(load_study(name), GPUS).trained
    kinds = {("iteration", "standard"), ("convergence", "standard")}
    assert {(cell.kind, cell.augmentation) for cell in found} == kinds


class Seeing(nn.Sequential):
    seen: ClassVar[list[torch.Tensor]] = []

    def __init__(self, shape: DataShape) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, shape.num_classes))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen.append(inputs.clone())
        return super().forward(inputs)


seeing = Model("seeing", Seeing, None, "digits", "these tests", {})


def seen(runner, group, **changes: Any) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:  # noqa: F811
    """The inputs of a timed cell's steps, in turn, and its samples."""
    Seeing.seen.clear()
    trust([f"{__name__}:seeing"])
    values = {**TIMED.to_dict(), "model": f"{__name__}:seeing", "model_parameters": {}, **changes}
    rows, _ = run(runner, group, Cell(**values))
    return [given for given in Seeing.seen if not given.is_meta], rows  # meta: operations are counted


def digits() -> Split:
    return create_dataset("digits", {}).load(DataShape((1, 8, 8), 10), 128, 0).train


class TestSteps:
    @pytest.fixture(autouse=True)
    def timed_ones_alone(self, monkeypatch):
        """Those that are checked before and after see plain images, and count nowhere."""
        monkeypatch.setattr(StepCheck, "steps", lambda *_: None)

    @pytest.mark.parametrize("placement", ["device", "loader"])
    def test_steps_see_the_images_of_a_training_cropped_and_mirrored(self, runner, group, placement):  # noqa: F811
        more = {"input_placement": placement, "loader_workers": 1 if placement == "loader" else None}
        inputs, _ = seen(runner, group, augmentation="standard", **more)
        images = digits().inputs
        variations = epoch_variations(len(images), 0, 1)
        batches = epoch_batches(len(images), 32, 0, 1)[:TIMING_BATCHES]
        assert len(inputs) > 2 * TIMING_BATCHES
        for number, given in enumerate(inputs):
            own = batches[number % TIMING_BATCHES]
            assert torch.equal(given, crop_and_flip(images[own], variations[own])), number
            assert not torch.equal(given, images[own])

    def test_without_it_they_see_them_as_they_are(self, runner, group):  # noqa: F811
        inputs, rows = seen(runner, group)
        images = digits().inputs
        (first, *_) = epoch_batches(len(images), 32, 0, 1)
        assert torch.equal(inputs[0], images[first])
        assert [phase for phase, *_ in rows[-1]["spans"]].count("input") == 1

    def test_another_seed_varies_them_otherwise(self, runner, group):  # noqa: F811
        images = digits().inputs
        for seed in (0, 1):
            inputs, _ = seen(runner, group, augmentation="standard", seed=seed)
            (own, *_) = epoch_batches(len(images), 32, seed, 1)
            varied = (epoch_variations(len(images), other, 1)[own] for other in (0, 1))
            fits = [torch.equal(inputs[0], crop_and_flip(images[own], one)) for one in varied]
            assert fits == [seed == 0, seed == 1]

    def test_augmenting_is_marked_as_input(self, runner, group):  # noqa: F811
        _, rows = seen(runner, group, augmentation="standard")
        phases = [phase for phase, *_ in rows[-1]["spans"]]
        assert phases[:3] == ["input", "input", "forward"]


RESNET = {"model": "resnet-56", "dataset": "synthetic", "global_batch": 4}
IMAGES = {"workloads": [RESNET]}
BOTH = ["contiguous", "channels_last"]
SYNTHETIC = {"dataset": "synthetic", "dataset_parameters": {"input_shape": None, "num_classes": None}}
CELL = {
    **TRAINED.to_dict(),
    **{"model": "resnet-56", "model_parameters": {}, **SYNTHETIC},
    **{"learning_rate": 0.01, "local_batch": 4, "global_batch": 4},
}


@pytest.mark.quality
class TestMemoryFormat:
    def test_it_expands_in_both_kinds_and_contiguous_is_what_cells_were_before(self):
        first, second = cells(**IMAGES, memory_format=BOTH)
        assert (first.memory_format, second.memory_format) == (None, "channels_last")
        assert [cell.id for cell in cells(**IMAGES)] == [
            cell.id for cell in cells(**IMAGES, memory_format="contiguous")
        ]
        assert first.id == cells(**IMAGES)[0].id != second.id
        assert "channels_last" in second.describe()
        assert "contiguous" not in first.describe()
        trained = cells(**IMAGES, kind="convergence", memory_format=BOTH, noise_pair=ABSENT)
        assert [cell.memory_format for cell in trained] == [None, "channels_last"]


@pytest.mark.quality
class TestRefused:
    @pytest.mark.parametrize("name", ["fcn-r", "lstm"])
    def test_networks_that_convolve_nothing(self, name):
        other = {"model": name, "dataset": "synthetic", "global_batch": 4}
        said = problem(workloads=[RESNET, other], memory_format=BOTH)
        assert "memory_format: channels_last" in said
        assert f"{name} on synthetic has" in said
        assert "use memory_format: contiguous" in said


@pytest.mark.quality
@pytest.mark.parametrize("name", ["steps-4xh200", "converge-alexnet-2xh200", "compression-2xh200"])
def test_cells_of_committed_results_keep_their_ids(name):
    records = ResultsFolder(REFERENCE / name).runs()
    assert records
    for record in records:
        assert Cell(**record.cell).id == record.cell_id


@pytest.mark.quality
@pytest.mark.parametrize("step", ["eager", "overlapped"])
def test_training_is_the_same_to_rounding(runner, group, step):  # noqa: F811
    """Losses of steps behind the first one, whose update they see; a forward pass says the order it had."""
    seen: list[bool] = []

    def noted(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, torch.nn.Conv2d) and not given[0].is_meta:  # meta: operations are counted
            seen.append(given[0].is_contiguous(memory_format=torch.channels_last))

    def trained(memory_format: str | None) -> list[float]:
        seen.clear()
        values = {**CELL, "step": step, "memory_format": memory_format}
        if step == "overlapped":
            values["bucket_mb"] = 25.0
        handle = torch.nn.modules.module.register_module_forward_pre_hook(noted)
        try:
            return losses(runner, group, Cell(**values))
        finally:
            handle.remove()

    contiguous = trained(None)
    assert not any(seen)
    last = trained("channels_last")
    assert all(seen)
    assert len(last) == len(contiguous) > 2
    assert last[:2] == pytest.approx(contiguous[:2], rel=1e-5)
    assert contiguous[0] != contiguous[1]
