"""Imports point down only: an explicit table of who may import whom, and who may touch what."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import read_imports
from tests.read_imports import Module, Modules, circles, planted, reaches, read_modules, uses_of

ROOT = Path(__file__).parents[1]

# Units of the project, from the ground up; each may import those named here and its own modules.
BOTTOM = frozenset({"scaling", "scaling.errors", "scaling.files", "scaling.import_path", "scaling.start_up"})
AND_AXES = BOTTOM | {"scaling.axes"}
GROUND = BOTTOM | {"scaling.process_group", "scaling.bucket", "scaling.registry", "topologies"}
ALGORITHMS = GROUND | {"scaling.collectives", "scaling.codecs"}
AGGREGATION = ALGORITHMS | {"scaling.aggregators", "scaling.conformance"}
PARTS = AGGREGATION | {
    "launchers", "scaling.training", "scaling.workloads", "scaling.measure", "scaling.store",
    "scaling.runtime",
}  # fmt: skip
DECLARED = frozenset({"scaling.device_studies.declaration"})
READING = BOTTOM | {"scaling.cli.options", "scaling.analysis", "scaling.report", "scaling.store"}
STUDYING = PARTS | {"scaling.cli.options", "scaling.study"}

VERBS = "advice compare doctor export foreign history listing predict report run schedule status submit"
OF_VERBS = {f"scaling.cli.{verb}" for verb in (*VERBS.split(), "synthesize", "topology", "tune", "verify")}

MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(("scaling", "scaling.errors", "scaling.axes", "scaling.import_path"), frozenset()),
    **dict.fromkeys(("scaling.start_up", "launchers"), frozenset()),
    "scaling.files": frozenset({"scaling.errors"}),
    "topologies": frozenset({"scaling.files"}),
    **dict.fromkeys(("scaling.bucket", "scaling.registry", "scaling.process_group"), BOTTOM),
    "scaling.aggregator_names": BOTTOM | {"scaling.registry"},
    **dict.fromkeys(("scaling.collectives", "scaling.codecs", "scaling.workloads"), GROUND),
    "scaling.aggregators": ALGORITHMS | {"scaling.aggregator_names"},
    "scaling.conformance": ALGORITHMS | {"scaling.aggregators"},
    "scaling.conformance.fidelity": AGGREGATION | {"scaling.measure", "scaling.workloads"},
    "scaling.store": AND_AXES | {"topologies"},
    "scaling.store.upgrades.plans": BOTTOM | {"scaling.collectives"},
    "scaling.measure": AGGREGATION,
    "scaling.measure.probe.run": AGGREGATION | {"scaling.measure", "launchers"},
    "scaling.measure.probe.worker": AGGREGATION | {"scaling.measure", "scaling.runtime", "launchers"},
    "scaling.training": AGGREGATION | {"scaling.measure", "scaling.workloads"},
    "scaling.device_studies": AGGREGATION | DECLARED | {"scaling.measure", "scaling.workloads"},
    "scaling.runtime": BOTTOM | {"scaling.process_group", "scaling.store", "launchers"},
    "scaling.analysis": AND_AXES
    | {"scaling.collectives", "scaling.store", "scaling.store.upgrades.plans", "scaling.measure"}
    | {"topologies"},
    "scaling.report": AND_AXES
    | {"scaling.registry", "scaling.analysis", "scaling.store", "scaling.measure"}
    | {"scaling.aggregator_names", "scaling.collectives", "topologies"}
    | DECLARED,
    "scaling.device_studies.declaration": BOTTOM | {"scaling.registry"},
    "scaling.prediction": AND_AXES | {"scaling.collectives", "scaling.bucket", "topologies"},
    "scaling.prediction.attached": AND_AXES | {"scaling.bucket", "scaling.store", "topologies"},
    "scaling.prediction.calibration_data": AND_AXES
    | {"scaling.analysis", "scaling.measure", "scaling.prediction", "scaling.store", "topologies"}
    | {"scaling.prediction.attached"},
    "scaling.study": PARTS
    | {"scaling.axes", "scaling.device_studies"}
    | {"scaling.prediction", "scaling.prediction.calibration_data"},
    "scaling.interchange": BOTTOM | {"scaling.collectives"},
    "scaling.doctor": PARTS,
    "scaling.worker": STUDYING,
    "scaling.attach": BOTTOM
    | {"launchers", "scaling.bucket", "scaling.store", "scaling.measure", "scaling.study"}
    | {"scaling.analysis", "scaling.report"},
    "scaling.cli.options": BOTTOM | {"scaling.study"},
    "scaling.cli.schedule": ALGORITHMS | {"scaling.measure", "scaling.interchange", "scaling.cli.options"},
    "scaling.cli.predict": STUDYING
    | {"scaling.prediction", "scaling.prediction.attached", "scaling.prediction.calibration_data"}
    | {"scaling.cli.schedule"},
    "scaling.cli.listing": STUDYING | DECLARED | {"scaling.device_studies"},
    "scaling.cli.run": STUDYING | READING | {"scaling.cli.report", "scaling.cli.run_against"},
    "scaling.cli.history": STUDYING | READING | {"scaling.cli.run", "scaling.cli.run_against"},
    "scaling.cli.tune": STUDYING | READING | {"scaling.cli.run", "scaling.prediction"},
    "scaling.cli.run_against": STUDYING | READING | {"scaling.cli.compare"},
    "scaling.cli.topology": STUDYING | {"scaling.measure.probe.run", "scaling.report"},
    "scaling.cli.synthesize": GROUND
    | {"scaling.cli.options", "scaling.cli.schedule", "scaling.collectives", "scaling.report"},
    "scaling.cli.verify": AGGREGATION
    | {"scaling.cli.options", "scaling.store", "scaling.conformance.fidelity"},
    "scaling.cli.foreign": STUDYING | {"scaling.attach"},
    "scaling.cli.doctor": frozenset({"scaling.cli.options", "scaling.doctor"}),
    "scaling.cli.submit": STUDYING,
    **{f"scaling.cli.{verb}": READING for verb in ("report", "compare", "export", "status")},
    "scaling.cli.advice": READING | {"topologies", "scaling.cli.predict"},
    "scaling.cli": BOTTOM | {"topologies", "scaling.cli.options", "scaling.store"} | OF_VERBS,
    "scaling.__main__": frozenset({"scaling.cli", "scaling.import_path"}),
}

MAY_IMPORT_FROM_OUTSIDE: dict[str, frozenset[str]] = {
    "launchers": frozenset(),
    "scaling.files": frozenset({"yaml"}),
    "topologies": frozenset({"yaml", "networkx", "pydantic", "pynvml"}),
}
"""Units of the standard library only, with what they may use besides."""

INSIDE_SCRIPTS = ("agent", "changes", "marking", "plan", "record", "settings")
TORCH_DISTRIBUTED = frozenset(
    {
        *("scaling.process_group.over_torch", "scaling.process_group.through_host"),
        "scaling.training.ddp",  # a constant of DDP
        "scaling.training.overlapped",  # the DDP hook
        "scaling.aggregators.power_sgd_hook",  # torch's PowerSGD hook
        "scaling.training.fully_sharded",  # torch's FSDP2
        *("scaling.runtime.workers", "scaling.runtime.meeting", "scaling.runtime.zygote"),  # the ranks' store
        *(f"scaling.attach.inside.{name}" for name in INSIDE_SCRIPTS),
    }
)
UNPICKLES = frozenset({"scaling.workloads.cifar10", "scaling.training.checkpoint"})
CUDA_EVENTS = frozenset({"scaling.measure.clock", "scaling.collectives.execute_host"})
CUDA_EVENTS |= {"scaling.attach.inside.agent", "scaling.attach.inside.record"}
NVML = frozenset({"topologies.detect_nvml", "scaling.measure.power"})
WRITERS: dict[str, frozenset[str]] = {
    "scaling.store.files": frozenset({"open", "replace"}),
    "scaling.store.folder": frozenset({"open"}),  # samples are appended to
    "scaling.store.locks": frozenset({"open"}),
    "scaling.store.run_samples": frozenset({"replace"}),
    "scaling.start_up": frozenset({"open"}),  # /dev/null, for standard streams that are closed
    "scaling.workloads.data_files": frozenset({"open", "replace"}),  # to the user's cache
    "scaling.report.figures.draw": frozenset({"savefig"}),  # to the store's figure_path
    "launchers.two_hosts": frozenset({"write_text"}),  # the hosts' names, for as long as they last
    "scaling.cli.export": frozenset({"write_bytes"}),  # event files, where the user says
    "scaling.cli.schedule": frozenset({"write_bytes"}),  # schedules and imported files, where the user says
    "scaling.cli.topology": frozenset({"write_text"}),  # machines and their pictures, where the user says
    "scaling.measure.probe.worker": frozenset({"open"}),  # samples, for the process that started it
    "scaling.training.checkpoint": frozenset({"torch.save"}),  # into memory, for the store
    "scaling.attach.inside.record": frozenset({"write_text"}),  # its record, inside the user's script
    "scaling.attach.inside.marking": frozenset({"open"}),  # likewise, in its loaders' workers
    "scaling.attach.files": frozenset({"move"}),  # what a script wrote, to its run's folder
    "scaling.attach.launch": frozenset({"open", "write_text"}),  # what the script prints; the run's order
    "scaling.study.run": frozenset({"open"}),  # the launches' logs, at the store's next_log_path
}
LATE_IN_CLI = frozenset({"torch", "numpy", "pydantic"})


def unit_of(module: str) -> str | None:
    """The unit of the table that a dotted name belongs to: the longest that is a prefix."""
    fitting = [unit for unit in MAY_IMPORT if module == unit or module.startswith(f"{unit}.")]
    unit = max(fitting, key=len, default=None)
    # `scaling` is the version and nothing else: another module in it has to be entered in the table.
    return None if unit == "scaling" and module != "scaling" else unit


def wrong_imports(modules: Modules) -> list[str]:
    """Everything that the tables forbid, as `module:line imports target`."""
    found = []
    for name, module in modules.items():
        unit = unit_of(name)
        if unit is None:
            found.append(f"{name} belongs to no layer: enter it in MAY_IMPORT")
            continue
        for one in module.imports:
            target = read_imports.resolve(one.target, modules)
            problem = f"{name}:{one.line} imports {target}"
            if read_imports.is_ours(target):
                if unit_of(target) not in MAY_IMPORT[unit] | {unit}:
                    found.append(f"{problem}; {unit} may import {', '.join(sorted(MAY_IMPORT[unit]))}")
            elif unit in MAY_IMPORT_FROM_OUTSIDE:
                top = target.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in MAY_IMPORT_FROM_OUTSIDE[unit]:
                    found.append(f"{problem}; {unit} is of the standard library only")
    return found


def reached_by_unit(unit: str, forbidden: frozenset[str], modules: Modules) -> list[str]:
    """The same for every module of a unit, late imports included."""
    own = [name for name in modules if unit_of(name) == unit]
    return [way for name in own for way in reaches(name, forbidden, modules, late=True)]


def torch_uses(modules: Modules) -> list[str]:
    """Modules besides the process group and the start-up that touch torch.distributed."""
    return uses_of(modules, "torch.distributed", TORCH_DISTRIBUTED)


def event_uses(modules: Modules) -> list[str]:
    """Modules besides the clock that make CUDA events or ask one for its time."""
    found = uses_of(modules, "torch.cuda.Event", CUDA_EVENTS)
    for name, module in modules.items():
        attributes = [node.attr for node in module.nodes if isinstance(node, ast.Attribute)]
        if name not in CUDA_EVENTS and {"elapsed_time", "record_event"} & set(attributes):
            found.append(f"{name} times CUDA events")
    return found


def nvml_uses(modules: Modules) -> list[str]:
    """Modules that load NVML, or ask it for something of a GPU, and are not allowed to."""
    found = uses_of(modules, "pynvml", NVML)
    for name, module in modules.items():
        asked = [node.attr for node in module.nodes if isinstance(node, ast.Attribute)]
        asked += [n.value for n in module.nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        if name not in NVML and any(text.startswith("nvmlDevice") for text in asked):
            found.append(f"{name} asks NVML")
    return found


def wrong_writers(modules: Modules) -> list[str]:
    """Modules that write files and are not the store, nor one of its exceptions."""
    return [
        f"{name}:{line} writes a file with {what}: results are written by scaling.store alone"
        for name, module in modules.items()
        for what, line in sorted(read_imports.writes(module))
        if what not in WRITERS.get(name, frozenset())
    ]


def process_calls(modules: Modules) -> list[str]:
    """Calls of Popen and killpg outside the launchers, as `module:line calls what`."""
    return [
        f"{name}:{call.lineno} calls {called}: processes are started and ended by launchers alone"
        for name, module in modules.items()
        if unit_of(name) != "launchers"
        for call in module.nodes
        if isinstance(call, ast.Call)
        and (called := ast.unparse(call.func)).rpartition(".")[2] in ("Popen", "killpg")
    ]


def pickles(modules: Modules) -> list[str]:
    """Modules that unpickle: messages between ranks are JSON (scaling.files.messages)."""
    objects = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
    return uses_of(modules, "pickle", UNPICKLES) + [
        f"{name}:{node.lineno} calls {node.attr}, which unpickles"
        for name, module in modules.items()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr in objects
    ]


@pytest.fixture(scope="module")
def project() -> dict[str, Module]:
    return read_modules(ROOT)


class TestTheProject:
    def test_all_three_packages_are_read(self, project):
        assert {"scaling.cli", "launchers.local", "topologies.detect"} <= set(project)

    @pytest.mark.parametrize(
        "wrong",
        [wrong_imports, circles, torch_uses, event_uses, nvml_uses, wrong_writers, process_calls, pickles],
    )
    def test_no_module_does_what_the_tables_forbid(self, project, wrong):
        assert wrong(project) == []

    def test_a_name_of_a_class_has_one_meaning(self, project):
        classes = Counter(
            node.name
            for module in project.values()
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
        )
        assert [name for name, count in classes.items() if count > 1 and not name.startswith("_")] == []

    @pytest.mark.parametrize("unit", ["report", "prediction", "store", "analysis"])
    def test_what_reads_results_never_reaches_torch_and_analysis_draws_nothing(self, project, unit):
        never = frozenset({"torch", *(("matplotlib", "jinja2") if unit == "analysis" else ())})
        assert reached_by_unit(f"scaling.{unit}", never, project) == []

    def test_cli_imports_nothing_heavy_when_it_is_imported(self, project):
        assert reaches("scaling.cli", LATE_IN_CLI, project, late=False) == []

    def test_no_name_in_the_tables_is_out_of_date(self, project):
        assert {*TORCH_DISTRIBUTED, *UNPICKLES, *CUDA_EVENTS, *NVML, *WRITERS} <= set(project)
        assert {unit for unit in MAY_IMPORT if unit not in project} == set()


class TestTheChecker:
    def test_table_has_no_cycle(self):
        done: set[str] = set()
        while ready := [u for u, below in MAY_IMPORT.items() if u not in done and below <= done]:
            done.update(ready)
        assert done == set(MAY_IMPORT)

    @pytest.mark.parametrize("source", [
        "import scaling.study.cell", "from scaling.study.cell import Cell", "from scaling.study import cell",
        "from ..study import cell",
        "from scaling import study",
        "def late():\n    from scaling.study.cell import Cell",
        "if True:\n    import scaling.study",
        "try:\n    import scaling.study\nexcept ImportError:\n    pass",
    ])  # fmt: skip
    def test_import_of_a_layer_above_is_found(self, source):
        tree = planted(scaling__codecs__mine=source, scaling__study__cell="", scaling__study="", scaling="")
        (problem,) = wrong_imports(tree)
        assert problem.startswith("scaling.codecs.mine:")
        assert "imports scaling.study" in problem

    @pytest.mark.parametrize("source", [
        "import scaling.codecs.mine", "def late():\n    from scaling.codecs import mine",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from scaling.codecs.mine import Mine",
    ])  # fmt: skip
    def test_a_circle_is_found_over_all_imports(self, source):
        tree = planted(
            scaling__codecs__mine="from scaling.codecs.other import f",
            scaling__codecs__other="import scaling.bucket\nfrom scaling.codecs.third import g",
            scaling__codecs__third=source,
            scaling__bucket="",
        )
        assert circles(tree) == [["scaling.codecs.mine", "scaling.codecs.other", "scaling.codecs.third"]]

    @pytest.mark.parametrize("source", [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import scaling.study",
        "import scaling.codecs.other\nfrom scaling.errors import ScalingError",
    ], ids=["for type checkers", "own unit and below"])  # fmt: skip
    def test_other_imports_are_right(self, source):
        tree = planted(scaling__codecs__mine=source, scaling__codecs__other="", scaling__errors="")
        assert wrong_imports(tree) == []

    def test_module_without_a_layer_is_found(self):
        assert "scaling.helpers belongs to no layer" in wrong_imports(planted(scaling__helpers=""))[0]

    @pytest.mark.parametrize(("unit", "source", "wrong"), [
        ("launchers", "import yaml", True), ("launchers", "import torch", True),
        ("launchers", "import os.path, subprocess", False),
        ("topologies", "import yaml, networkx, pydantic", False),
        ("topologies", "def late():\n    import torch", True),
        ("topologies", "from scaling.errors import TopologyError", True),
        ("topologies", "from scaling.files.documents import read_text", False),
        ("scaling.files", "import yaml", False), ("scaling.files", "import pydantic", True),
    ])  # fmt: skip
    def test_launchers_and_topologies_are_of_the_standard_library(self, unit, source, wrong):
        assert bool(wrong_imports({f"{unit}.mine": Module(f"{unit}.mine", ast.parse(source))})) == wrong

    def test_torch_behind_another_module_is_found_with_the_way_to_it(self):
        tree = planted(
            scaling__report__page="from scaling.measure.statistics import estimate",
            scaling__measure__statistics="",
            scaling__measure="def f():\n    from scaling.measure.clock import mark",
            scaling__measure__clock="import torch.cuda",
            scaling="",
        )
        way = "scaling.report.page -> scaling.measure -> scaling.measure.clock -> torch.cuda"
        assert reached_by_unit("scaling.report", frozenset({"torch"}), tree) == [way]

    def test_only_late_imports_may_be_heavy_in_the_command_line(self):
        late = planted(scaling__cli="def verb():\n    import torch", scaling="")
        heavy = {"scaling__errors": "from numpy import array", "scaling": ""}
        early = planted(scaling__cli="import scaling.errors", **heavy)
        assert reaches("scaling.cli", LATE_IN_CLI, late, late=False) == []
        way = "scaling.cli -> scaling.errors -> numpy.array"
        assert reaches("scaling.cli", LATE_IN_CLI, early, late=False) == [way]

    @pytest.mark.parametrize(("find", "allowed", "source"), [
        *((torch_uses, "scaling__runtime__workers", source) for source in (
            "import torch.distributed as dist", "from torch import distributed",
            "from torch.distributed import all_reduce", "import torch\ntorch.distributed.barrier()",
        )),
        *((event_uses, "scaling__measure__clock", source)
          for source in ("torch.cuda.Event()", "start.elapsed_time(stop)")),
        *((nvml_uses, "scaling__measure__power", source) for source in (
            "def f():\n    import pynvml", "nvml.nvmlDeviceGetPowerUsage(handle)",
            "ask('nvmlDeviceGetPowerUsage', handle)",
        )),
        *((pickles, "scaling__workloads__cifar10", source)
          for source in ("import pickle", "def f():\n    from pickle import loads")),
        *((process_calls, "launchers__mine", source)
          for source in ("subprocess.Popen(words)", "Popen(words)", "os.killpg(1, 9)")),
    ])  # fmt: skip
    def test_what_few_modules_may_do_is_found_elsewhere(self, find, allowed, source):
        assert len(find(planted(scaling__training__step=source))) == 1
        assert find(planted(**{allowed: source})) == []

    def test_a_patch_or_an_annotation_of_popen_is_no_call(self):
        source = "begin = module.Popen.__init__\ndef f(one: subprocess.Popen[bytes]): ..."
        assert process_calls(planted(scaling__attach__mine=source)) == []

    @pytest.mark.parametrize(("source", "wrong"), [*((source, True) for source in (
        "open('rank0.jsonl', 'a')", "open(path, mode='w', encoding='utf-8')", "path.open('wb')",
        "path.write_text(text)", "path.write_bytes(data)", "json.dump(rows, file)", "figure.savefig(path)",
        "table.to_csv(path)", "os.replace(a, b)", "yaml.safe_dump(study, file)",
    )), *((source, False) for source in (
        "open(path)", "path.open(encoding='utf-8')", "path.open('rb')",
        "folder.write_text('summary.csv', text)", "json.dumps(rows)", "yaml.safe_dump(study)",
        "table.to_csv(index=False)", "text.replace('a', 'b')",
    ))])  # fmt: skip
    def test_writing_outside_the_store_is_found_and_reading_and_its_methods_are_not(self, source, wrong):
        assert len(wrong_writers(planted(scaling__study__mine=source))) == wrong

    def test_exceptions_are_for_one_kind_of_writing_only(self):
        assert wrong_writers(planted(scaling__report__figures__draw="figure.savefig(path)")) == []
        assert wrong_writers(planted(scaling__report__figures__draw="open(path, 'w')"))
