"""The tables of benchmarks/results say what the committed samples give."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from scaling.analysis.steps_by_batch import rate_rule
from tests.made import loaded
from tests.numbers_in_docs import holds_numbers
from topologies.schema import load

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RESULTS = BENCHMARKS / "results"
GOALS = RESULTS / "exchange-goals-2xh100"
MIB = 1 << 20
SIZES = {"64 MiB": 64 * MIB, "512 MiB": 512 * MIB, "1 GiB": 1024 * MIB}


def tables() -> dict[str, list[list[str]]]:
    """File -> the rows of the table that follows its name."""
    found: dict[str, list[list[str]]] = {}
    name = ""
    for line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"`([\w/-]+\.(?:csv(?:\.gz)?|json))`", line):
            name = match[1]
        elif line.startswith("|") and not line.startswith("|---"):
            found.setdefault(name, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def samples(file: str, comparison: str) -> pd.DataFrame:
    table = pd.read_csv(RESULTS / "collective-speed-4xh200" / file)
    return table[table.comparison.str.startswith(comparison)]


def quartiles(table: pd.DataFrame, contender: str, num_bytes: int) -> str:
    times = table[(table.contender == contender) & (table.bytes == num_bytes)].seconds * 1e3
    low, median, high = times.quantile([0.25, 0.5, 0.75])
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


@pytest.mark.parametrize("file", ["nvlink.csv", "host-only.csv"])
def test_all_reduce_tables_are_those_of_the_samples(file):
    (header, *rows), table = tables()[file], samples(file, "all-reduce")
    assert len(rows) >= 4
    for name, *cells in rows:
        for size, shown, ratio in zip(header[1::2], cells[::2], cells[1::2], strict=True):
            assert shown == quartiles(table, name, SIZES[size]), (name, size)
            axes = {"index": "round", "columns": "contender", "values": "seconds"}
            by_round = table[table.bytes == SIZES[size]].pivot(**axes)
            expected = (by_round["NCCL all-reduce"] / by_round[name]).median()
            assert ratio == f"{expected:.2f}", (name, size)


def test_host_table_is_that_of_the_samples():
    (_, *rows), table = tables()["host-sums.csv"], samples("host-sums.csv", "host sums")
    assert len(rows) == 6
    for name, *cells in rows:
        for num_bytes, shown in zip(sorted(table.bytes.unique()), cells, strict=True):
            assert shown == quartiles(table, name, num_bytes), (name, num_bytes)


def test_small_exchanges_are_those_of_the_samples():
    (_, *rows), table = tables()["exchange-goals-2xh100/curves.csv.gz"], pd.read_csv(GOALS / "curves.csv.gz")
    table = 1e6 * table[table.comparison == "by_size"].pivot(
        index=["bytes", "round"], columns="exchange", values="seconds"
    )
    table["ratio"] = table.all_reduce / table.by_size
    assert len(rows) == table.index.levshape[0] == 8
    for (_, of_size), (_, library, by_size, _, ratio) in zip(table.groupby("bytes"), rows, strict=True):
        low, median, high = (of_size.quantile(at) for at in (0.25, 0.5, 0.75))
        for shown, name, digits in ((library, "all_reduce", 1), (by_size, "by_size", 1), (ratio, "ratio", 2)):
            expected = (f"{one[name]:.{digits}f}" for one in (median, low, high))
            assert shown == "{} [{}, {}]".format(*expected)


def test_sums_in_host_memory_are_those_of_two_machines():
    _, *rows = tables()["exchange-goals-2xh100/host.csv.gz"]
    machines = [pd.read_csv(GOALS / name) for name in ("host.csv.gz", "host-second-machine.csv.gz")]
    for name, *cells in rows:
        for machine, shown in zip(machines, cells, strict=True):
            of_size = machine[(machine.contender == name.strip("`")) & (machine.bytes == 488_776_192)]
            expected = 1e3 * of_size.seconds.quantile([0.5, 0.25, 0.75])
            median, low, high = (f"{value:#.3g}".removesuffix(".") for value in expected)
            assert shown == f"{median} [{low}, {high}]"


def test_probe_tables_are_what_file_and_samples_give():
    probe_against_model = loaded(BENCHMARKS / "probe_against_model.py")
    folder = RESULTS / "probe-4xh200"
    samples = probe_against_model.read_samples(folder / "samples.csv.gz")
    found = list(probe_against_model.compare(load(folder / "machine.yaml"), samples))
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    for launch in probe_against_model.LAUNCHES:
        own = [one for one in found if one.launch == launch]
        assert {one.operation for one in own} == {"all_reduce", "shift"}
        assert set(probe_against_model.table(own)) <= set(lines)


def test_table_of_the_ddp_loop_is_that_of_the_samples(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from against_ddp_loop import table

    (_, *rows) = tables()["against-ddp-loop-4xh200/samples.csv"]
    made = cells(table(RESULTS / "against-ddp-loop-4xh200"))
    assert (len(rows), rows) == (36, made[1:])


def seconds_by_name(file: str) -> dict[str, list[float]]:
    document = json.loads((RESULTS / "one-bit-h200" / file).read_text(encoding="utf-8"))
    return {row["name"]: row["seconds"] for row in document["rows"]}


EAGER, GRAPH = ", kernels", ", kernels, graph"
EXCHANGES = [(f"exchange-{links}", suffix) for links in ("host-only", "nvlink") for suffix in ("", ", graph")]


@pytest.mark.parametrize(("table", "num_rows", "ways"), [
    ("one_bit_speed", 4, [("one_bit_speed", way) for way in (EAGER, GRAPH, ", torch")]),
    ("exchange-nvlink", 7, EXCHANGES),
])  # fmt: skip
def test_one_bit_tables_are_those_of_the_samples(table, num_rows, ways):
    header, *rows = tables()[f"one-bit-h200/{table}.json"]
    samples = {file: seconds_by_name(f"{file}.json") for file, _ in ways}
    assert (len(rows), len(header)) == (num_rows, 1 + len(ways))
    assert {len(seconds) for of_file in samples.values() for seconds in of_file.values()} == {30}
    for name, *shown in rows:
        assert shown == [milliseconds(samples[file][name + way]) for file, way in ways], name


def test_text_on_one_bit_is_that_of_the_samples():
    text = text_of_results()
    host_only, nvlink = (seconds_by_name(f"exchange-{links}.json") for links in ("host-only", "nvlink"))
    ways = ("sends + sends back, graph", "all-to-all + all-gather, graph")
    shares = [np.divide(*(np.median(one[way]) for way in ways)) for one in (host_only, nvlink)]
    assert holds_numbers(text, f"take {shares[0]:.2f} times as long in a graph as all-to-all and all-gather")
    assert holds_numbers(text, f"over NVLink {shares[1]:.2f} times")
    eager = [1e3 * np.median(nvlink[name]) for name in ("sends + sends back", "all-to-all + all-gather")]
    assert holds_numbers(text, f"{eager[0]:.3f} against {eager[1]:.3f} ms")
    assert np.median(seconds_by_name("one_bit_speed.json")["encode, kernels"]) < 0.8e-3
    equality = json.loads((RESULTS / "one-bit-h200" / "one_bit_speed.json").read_text())["equality"]
    assert (equality["words_of_bits"], equality["limits"] < 4e-7) == (0, True)
    assert max(equality["residual"], equality["sums"]) < 2e-9
    tried = pd.read_csv(RESULTS / "one-bit-h200" / "samples.csv").groupby("contender").seconds.median()
    assert tried[tried.index.str.startswith("encode, tiles")].idxmin() == "encode, tiles 256,4,8,2"
    before = [1e3 * tried[f"encode sums, kernels{suffix}"] for suffix in ("", ", graph")]
    assert holds_numbers(text, f"({before[0]:.3f}, in a graph {before[1]:.3f} ms)")


def text_of_results() -> str:
    """The page, each run of white space as one space."""
    return " ".join((RESULTS / "README.md").read_text(encoding="utf-8").split())


def cells(lines: list[str]) -> list[list[str]]:
    """The rows of a Markdown table, without the rule below its header."""
    rows = [line for line in lines if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def milliseconds(seconds: list[float]) -> str:
    low, median, high = 1e3 * np.percentile(seconds, [25, 50, 75])
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


POWER_SGD_2 = ["power-sgd-2xh200/nvlink.json", "power-sgd-2xh200/host-only.json"]
POWER_SGD_4 = ["power-sgd-4xh200/nvlink.json", "power-sgd-4xh200/host-only.json"]


@pytest.mark.parametrize("file", [*POWER_SGD_2, *POWER_SGD_4])
def test_power_sgd_tables_are_those_of_the_samples(file, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from power_sgd_table import overview

    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    shown = tables()[file]
    assert (shown, len(shown)) == (cells(overview(document)), 4)
    for name, *row in shown[1:]:
        every = document["networks"][name]["contenders"]
        fastest = {}
        for start in ("hook", "power_sgd captured", "none captured"):
            own = (one["iteration_s"] for other, one in every.items() if other.startswith(start))
            fastest[start] = min(own, key=np.median)
        times = [every["DDP"]["iteration_s"], *fastest.values()]
        assert row[:4] == [milliseconds(one) for one in times]
        ratios = np.divide(fastest["hook"], fastest["power_sgd captured"])
        assert row[4] == f"{np.median(ratios):.2f} [{ratios.min():.2f}, {ratios.max():.2f}]"


@pytest.mark.parametrize("file", POWER_SGD_2)
def test_text_on_losses_and_configurations_is_that_of_the_samples(file):
    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    text = text_of_results()
    falls: dict[str, dict[str, float]] = {}
    for name, network in document["networks"].items():
        assert network["num_rounds"] == 6
        assert not network["failed"]
        every = network["contenders"]
        assert 5 <= sum(one["kind"] == "hook" for one in every.values()) <= 9
        names = {"ours": "power_sgd captured, 1 MB", "hook": "hook, 1000 MB, batched", "ddp": "DDP"}
        losses = {short: every[contender]["losses"] for short, contender in names.items()}
        falls[name] = {short: own[0] - np.mean(own[-4:]) for short, own in losses.items()}
    one, two, three = (falls[name] for name in ("fcn-r", "fcn-s4", "resnet-56"))
    assert holds_numbers(text, f"by {one['ours']:.3f} with ours and {one['hook']:.3f} with the hook on FCN-R")
    assert holds_numbers(text, f"by {two['ours']:.2f} and {two['hook']:.2f} on fcn-s4")
    assert holds_numbers(text, f"DDP's fall by {one['ddp']:.3f}, {two['ddp']:.2f} and {three['ddp']:.2f}")
    assert three["ours"] == pytest.approx(0.163, abs=0.001)
    assert holds_numbers(text, "by 0.163 and 0.188 on ResNet-56")
    assert three["hook"] == pytest.approx(0.188, abs=0.001)


OURS = "power_sgd captured, 25 MB"
NETWORKS = ("fcn-r", "fcn-s4", "resnet-56")


def test_text_on_power_sgd_on_four_gpus_is_that_of_the_samples(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from power_sgd_table import LOSSES_EQUAL, summary

    text, documents = text_of_results(), [json.loads((RESULTS / file).read_text()) for file in POWER_SGD_4]
    assert [(one["host_only"], one["world_size"]) for one in documents] == [(False, 4), (True, 4)]
    for document in documents:
        assert {(one["num_rounds"], len(one["failed"])) for one in document["networks"].values()} == {(6, 0)}
    summaries = [{name: summary(one["networks"][name]) for name in NETWORKS} for one in documents]
    ratios = []
    for said in summaries:
        assert {one["best_ours"] for one in said.values()} == {OURS}
        for name in (OURS, "power_sgd eager"):
            ratios.append([f"{said[network]['contenders'][name]['ratio']:.2f}" for network in NETWORKS])
    nvlink, eager_nvlink, host_only, eager_host_only = ratios
    assert holds_numbers(text, "{} (FCN-R), {} (fcn-s4) and {} times (ResNet-56) as fast".format(*nvlink))
    assert holds_numbers(text, "hook over NVLink, {}, {} and {} times host-only".format(*host_only))
    assert holds_numbers(text, "without the graph, {}, {} and {} times over NVLink".format(*eager_nvlink))
    assert holds_numbers(text, "{}, {} and {} host-only".format(*eager_host_only))

    def times_of(one):
        return {key: 1e3 * row["median_s"] for key, row in one["contenders"].items()}

    times = [{name: times_of(one) for name, one in said.items()} for said in summaries]
    one, two, three = (times[0][name] for name in NETWORKS)
    assert holds_numbers(text, f"{one[OURS]:.2f} against {one['DDP']:.2f} ms on FCN-R")
    assert holds_numbers(text, f"{two[OURS]:.2f} against {two['DDP']:.2f} on fcn-s4")
    assert holds_numbers(text, f"{three[OURS]:.2f} against {three['DDP']:.1f} on ResNet-56")
    assert holds_numbers(text, f"exchanges nothing takes {three['none captured, 25 MB']:.2f} ms")
    assert holds_numbers(text, f"loses to DDP on FCN-R ({one['power_sgd eager']:.2f} ms)")
    one_bit = [row["one_bit captured, 25 MB"] for row in (one, two, three)]
    assert holds_numbers(text, "a little faster here: {:.2f}, {:.2f} and {:.2f} ms".format(*one_bit))
    for said, row in zip(summaries[0].values(), (one, two, three), strict=True):
        assert row[said["best_hook"]] > row["DDP"]
        assert row["one_bit captured, 25 MB"] < row[OURS]
    one, two, three = (times[1][name] for name in NETWORKS)
    assert holds_numbers(text, f"{one['DDP'] / one[OURS]:.1f} times as fast as DDP on FCN-R")
    assert holds_numbers(text, f"{two['DDP'] / two[OURS]:.1f} times on fcn-s4")
    assert holds_numbers(text, f"the {three['DDP'] / three[OURS]:.1f} times on ResNet-56")
    assert holds_numbers(text, f"fp16 hook ({one['DDP, fp16 hook']:.2f} ms)")
    shown = {
        "fcn-r": "{:.3f} with ours and {:.3f} with the hook on FCN-R (DDP's: {:.3f})",
        "fcn-s4": "{:.2f} and {:.2f} on fcn-s4 ({:.2f})",
        "resnet-56": "{:.3f} and {:.3f} on ResNet-56 ({:.3f}; all over NVLink)",
    }
    for name, said in summaries[0].items():
        rows = (said["contenders"][key] for key in (OURS, said["best_hook"], "DDP"))
        falls = [row["loss_first"] - row["loss_last"] for row in rows]
        assert holds_numbers(text, shown[name].format(*falls))
    assert holds_numbers(text, f"fell by {100 * (1 - falls[0] / falls[1]):.0f}% less")
    assert LOSSES_EQUAL == (0.5, 2.0), "between half and twice the hook's"


def test_codec_tables_are_those_of_the_samples(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from codec_table import BYTES_PER_S, lines

    file = "codec-speed-h200/codec_speed.json"
    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    shown = tables()[file]
    assert shown == [row for size in (122_194_048, 14_205_962) for row in cells(lines(document, size))]
    assert len(shown) == 2 * (1 + 16)
    every = [row for codec in document["codecs"] for row in codec["rows"]]
    assert {len(row["seconds"]) for row in every} == {15}
    assert 4.305e12 < max(row["bytes_moved"] / np.median(row["seconds"]) for row in every) < BYTES_PER_S
    large = {row["name"]: row["seconds"] for one in document["codecs"][:6] for row in one["rows"]}
    for name, *row in shown[1:17]:
        assert row[0] == milliseconds(large[f"{name}, kernels"])
        assert row[2] == milliseconds(large[f"{name}, torch"])
    slower = [row[0] for row in shown if row[4].replace(".", "").isdigit() and float(row[4]) < 1]
    assert not slower, "what the text says"
    text = text_of_results()
    codes = document["codecs"]
    rows = [row for one in codes[:6] for row in one["rows"] if row["name"].endswith("encode, kernels, graph")]
    encodings = [np.median(row["seconds"]) * BYTES_PER_S / row["bytes_moved"] for row in rows]
    assert holds_numbers(text, f"takes {min(encodings):.2f} to {max(encodings):.2f} times its floor")
    ways = ("kernels", "kernels, graph", "torch")
    decoding = [1e3 * np.median(large[f"two_bit, decode, {way}"]) for way in ways]
    assert holds_numbers(text, f"{decoding[0]:.3f} and {decoding[1]:.3f}, torch {decoding[2]:.3f}")
    assert max(value for one in document["codecs"] for value in one["equality"].values()) < 3e-7


def test_steps_that_were_predicted_before_they_were_trained_are_those_of_the_table():
    folder, program = RESULTS / "steps-to-target", loaded(BENCHMARKS / "steps_to_target.py")
    predicted = json.loads((folder / "prediction.json").read_text())
    epochs = pd.read_csv(folder / "epochs.csv")
    names = {"AlexNet-R": "alexnet-r", "MLP": "mlp(hidden=[128])", "GPT nano": "gpt(size=nano)"}
    rows = tables()["steps-to-target/epochs.csv"][1:]
    assert len(rows) == 10
    for workload, size, steps, guess, error, inside in rows:
        network, optimizer = workload.split(", ")
        name, batch = f"{names[network]}, {optimizer.lower()}", size.replace(",", "")
        again = program.predictions(epochs, [64, 256, 1024] if network == "GPT nano" else [256, 1024])
        one = program.batches(epochs[(epochs.model + ", " + epochs.optimizer) == name])[int(batch)]
        known = predicted[name]["steps"][batch]
        assert again[name]["steps"][batch] == pytest.approx(known, rel=0.001)
        assert steps == ", ".join(f"{each:,.0f}" for each in one.steps)
        assert guess == f"{known['value']:,.0f} ({known['low']:,.0f} to {known['high']:,.0f})"
        assert error == f"{known['value'] / np.exp(one.logs.mean()) - 1:+.1%}"
        assert inside == f"{sum(known['low'] < each < known['high'] for each in one.steps)} of 3"


def test_each_batch_that_is_left_out_and_the_rules_of_rates_are_as_the_text_says():
    program = loaded(BENCHMARKS / "steps_to_target.py")
    epochs = pd.read_csv(RESULTS / "steps-to-target/epochs.csv")
    left_out = program.table(epochs).dropna(subset="error")
    worst = left_out.loc[left_out.error.abs().idxmax()]
    assert (len(left_out), set(left_out.inside)) == (33, {3})
    assert (worst.workload, worst.batch) == ("gpt(size=nano), adamw", 32)
    assert [round(100 * value) for value in (abs(worst.error), left_out.error.abs().median())] == [32, 6]
    rules = {name: rate_rule([*trained.values()]) for name, trained in program.by_workload(epochs)}
    shown = {name: rule for name, rule in rules.items() if rule}
    assert (len(rules), shown) == (5, {"alexnet-r, sgd": "sqrt", "gpt(size=nano), adamw": "fixed"})


def test_choices_of_workers_and_batch_and_their_seconds_are_as_the_table_says():
    folder, program = RESULTS / "steps-to-target", loaded(BENCHMARKS / "steps_to_target.py")
    of = {"AlexNet-R": ("cifar", "epochs"), "MLP": ("mnist", "epochs mlp-seeds"), "GPT": ("mnist", "gpt")}
    lines = tables()["steps-to-target/gpt.csv"][1:]
    assert len(lines) == 4
    for name, *cells in lines:
        data, files = of[name.replace(",", "").split()[0]]
        bits = 2.7 if "2.7" in name else None
        epochs = program.read_epochs([folder / f"{file}.csv" for file in files.split()], bits)
        epochs = epochs[epochs.model.str.startswith(name[:3].lower())]
        timed, own = program.read_times(BENCHMARKS.parent / f"results/reference/learning-{data}-2xh200", bits)
        folded = program.folds(epochs, timed, own)
        near = (folded.over_best <= program.NEAR).groupby(folded.left_out.map(len))
        assert cells[:2] == [f"{some.sum()} of {len(some)}" for _, some in near]
        trained = program.against_trainings(epochs, timed, own).dropna(subset="error")
        by_size = [some for _, some in trained.groupby("world_size")]
        assert cells[2] == ", ".join(f"{some.error.abs().median():.1%}" for some in by_size)
        assert cells[3] == ", ".join(f"{some.inside.sum()} of {len(some)}" for some in by_size)


@pytest.mark.parametrize("path", sorted((RESULTS / "gpu-tests").glob("*.xml")), ids=lambda path: path.stem)
def test_tests_of_gpus_say_where_they_ran_and_nothing_was_left_out_that_could_run(path):
    (suite,) = ElementTree.parse(path).getroot()
    facts = {one.get("name"): one.get("value") for one in suite.find("properties")}
    assert re.fullmatch("[0-9a-f]{40}", facts["commit"])
    assert re.match(r"20\d\d-\d\d-\d\dT", facts["date"])
    for name in ("driver", "torch", "cuda", "nccl", "python", "cpu"):
        assert facts[name] not in ("", "None"), name
    promised = int(facts["SCALING_TEST_GPUS"])
    assert 1 <= promised <= len(facts["gpus"].split(", "))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    for reason in {left_out.get("message") for left_out in suite.iter("skipped")}:
        needed, seen = map(int, re.fullmatch(r"needs (\d+) GPU\(s\), and torch sees (\d+)", reason).groups())
        assert needed > max(promised, seen)
    assert int(suite.get("tests")) > int(suite.get("skipped"))
