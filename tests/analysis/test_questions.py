"""A study's question, and its answer first."""

import re
from typing import get_args

import pytest
import yaml

from scaling.analysis.columns import to_rows
from scaling.analysis.questions import answers as answers_to
from scaling.analysis.questions import question_of
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.axes import Question
from scaling.errors import StudyError
from scaling.report import write_report
from scaling.report.answer import question_answer
from scaling.report.formats import MISSING
from scaling.study.overrides import shipped_studies
from scaling.study.schema import parse_study
from tests.analysis.test_verdict import add, fill

GPU = {"device": "cuda", "peer_access": True, "step": "overlapped"}


def table_of(study):
    cells = read_cells(study.folder)
    return build_table("by-hand", cells), cells


def answered(study, question):
    return question_answer(answers_to(question, *table_of(study)))


def asked(study, **keys):
    return question_of(keys, to_rows(table_of(study)[0]))


def column(answer, heading):
    return [row[answer.table.headings.index(heading)] for row in answer.table.rows]


def test_every_shipped_study_has_a_question_and_keeps_it_and_an_unknown_one_is_an_error():
    for name, text in shipped_studies().items():
        study = parse_study(yaml.safe_load(text), name)
        assert study.question in get_args(Question), name
        assert parse_study(study.model_dump(mode="json"), name).question == study.question
    raw = {"name": "x", "question": "speed", "kind": "device", "experiment": "lstm-fused"}
    with pytest.raises(StudyError, match="question is 'speed'; allowed: speedup, aggregator, compression"):
        parse_study(raw, "x.yaml")


def test_own_key_wins_and_cells_decide_without_one(study):
    for cells, question in (
        ([("all_reduce", 2, 0.5)], "speedup"), ([("ring", 2, 0.5)], "aggregator"),
        ([("none", 1, 1.0)], "speedup"), ([("zero2", 2, 0.5)], "memory"),
    ):  # fmt: skip
        fill(study, *cells, **GPU)
        assert asked(study) == question
    assert (asked(study, question="buckets"), asked(study, question="nonsense")) == ("buckets", "memory")


def test_many_sizes_of_buckets_ask_which(study):
    for bucket_mb in (1.0, 4.0, 25.0, 100.0):
        add(study, "all_reduce", 2, 0.5 + bucket_mb / 1e3, bucket_mb=bucket_mb, launches=1, **GPU)
    assert asked(study) == "buckets"
    answer = answered(study, "buckets")
    assert answer.sentence == (
        "Buckets of 1 MiB are fastest in one launch: 501 ms a step; 100 MiB, the slowest, 1.20 times as long."
    )


def test_sizes_of_buckets_have_an_interval_and_name_those_that_are_as_fast(study):
    for bucket_mb, seconds in ((1.0, 0.5), (4.0, 0.5), (25.0, 0.55), (100.0, 0.6)):
        add(study, "all_reduce", 2, seconds, bucket_mb=bucket_mb, **GPU)
    answer = answered(study, "buckets")
    assert re.fullmatch(
        r"Buckets of 1 MiB are fastest: 500 ms a step \(not shown to be slower: 4 MiB\); 100 MiB, the "
        r"slowest, 1\.20 ±<?0\.\d% times as long\.",
        answer.sentence,
    )
    assert column(answer, "x as long")[0].startswith("1.20 ±")


def test_trainings_ask_for_a_target_where_they_have_one(study, epoch_line):
    study.add([[[epoch_line(1, 1.0, 2.0, 0.9)]]], kind="convergence")
    assert asked(study) == "compression"
    study.add([[[epoch_line(1, 1.0, 2.0, 0.9)]]], kind="convergence", target_accuracy=0.5)
    assert asked(study) == "time_to_target"


def test_fastest_is_compared_with_ddp_on_each_link(study):
    for peer_access, ddp_s in ((True, 0.6), (False, 1.2)):
        link = {"device": "cuda", "peer_access": peer_access}
        add(study, "none", 2, 0.1, step="overlapped", **link)
        add(study, "all_reduce", 2, ddp_s, step="overlapped", **link)
        add(study, "all_reduce", 2, 0.4, step="captured", **link)
        add(study, "one_bit", 2, 0.3, step="captured", lossy=True, **link)
    answer = answered(study, "aggregator")
    assert "peer access: exact all_reduce (captured step) is 1.50 ±" in answer.sentence
    assert "lossy one_bit (captured step, accuracy not compared) 2.00 ±" in answer.sentence
    assert (column(answer, "DDP, ms"), column(answer, "GPUs")) == (["600", "1201"], ["2", "2"])
    assert column(answer, "x DDP")[1].startswith("3.00 ±")
    assert "mlp, host-only" in answer.table.rows[1][0]


def test_lossy_in_a_step_of_its_own_says_that_part_of_the_gain_may_be_the_steps(study):
    add(study, "all_reduce", 2, 0.6, **GPU)
    add(study, "one_bit", 2, 0.3, lossy=True, **{**GPU, "step": "captured"})
    answer = answered(study, "compression")
    assert "one_bit (captured, DDP not, accuracy not compared) is 2.00 ±" in answer.sentence
    assert answer.sentence.endswith("Nothing exact has a captured step: part of the gain may be the step's.")


def test_ratio_of_one_launch_has_no_interval_and_says_so(study):
    add(study, "all_reduce", 2, 0.6, launches=1, **GPU)
    add(study, "ring", 2, 0.4, launches=1, **{**GPU, "step": "eager"})
    answer = answered(study, "aggregator")
    assert answer.sentence.endswith("1.50 times as fast as DDP on 2 GPUs (400 against 600 ms, one launch).")
    assert column(answer, "x DDP") == ["1.50"]


def test_eager_all_reduce_is_not_called_ddp_in_the_sentence(study):
    add(study, "all_reduce", 2, 0.6, device="cpu")
    add(study, "ring", 2, 0.4, device="cpu")
    sentence = answered(study, "aggregator").sentence
    assert re.search(r"1\.50 ±\S+% times as fast as all_reduce on 2 workers", sentence), sentence


def train(study, epoch_line, link=None, **accuracies):
    for name, accuracy in accuracies.items():
        lines = [epoch_line(1, 1.0, 2.0, accuracy)]
        given = {"aggregator": name, "world_size": 2, "lossy": name != "all_reduce", **(link or {})}
        study.add([[lines] * 2], kind="convergence", **given)


@pytest.mark.parametrize(("workers", "on"), [(2, ""), (4, "2")])
def test_compression_has_the_accuracy_of_the_same_training_or_says_on_how_many_workers(
    study, epoch_line, workers, on
):
    fill(study, ("all_reduce", workers, 0.6), ("one_bit", workers, 0.4, {"lossy": True}), **GPU)
    train(study, epoch_line, all_reduce=0.95, one_bit=0.94)
    answer = answered(study, "compression")
    said = f"one_bit (-1.00 points of accuracy{on and f' on {on} workers'}) is 1.50 ±"
    assert f"lossy {said}" in answer.sentence
    assert column(answer, "points") == [f"-1.00{on and f' on {on}'}"]


def test_trainings_of_one_seed_say_what_each_loses(study, epoch_line):
    train(study, epoch_line, all_reduce=0.95, one_bit=0.94, top_k=0.90)
    answer = answered(study, "compression")
    said = "Most accurate lossy: one_bit on 2 workers, 1.00 points below exact all_reduce (95.00%)"
    assert answer.sentence == f"{said}, trained 1.00 times as fast; one seed each, perhaps chance."
    assert [row[0] for row in answer.table.rows] == ["one_bit", "top_k", "all_reduce, exact"]
    assert answer.table.bounds == [2]
    assert column(answer, "points") == ["-1.00", "-5.00", MISSING]


def test_link_of_compression_is_named_even_where_there_is_one_alone(study, epoch_line):
    fill(study, ("all_reduce", 2, 0.6), ("one_bit", 2, 0.4, {"lossy": True}), **GPU)
    answer = answered(study, "compression")
    (chosen,) = [cell for cell in read_cells(study.folder) if cell.cell["aggregator"] == "one_bit"]
    assert answer.cells[0] == chosen.cell_id  # the page opens where that was timed
    assert answer.sentence.startswith("mlp, peer access: lossy one_bit")
    assert column(answer, "workload") == ["mlp, peer access"]


def test_trainings_are_compared_on_their_link_which_is_named_with_their_speed(study, epoch_line):
    for peer_access in (True, False):
        link = {"device": "cuda", "peer_access": peer_access}
        train(study, epoch_line, link, all_reduce=0.95, one_bit=0.94)
    answer = answered(study, "compression")
    assert "(95.00%), trained 1.00 times as fast (GPU peer access); one seed each" in answer.sentence
    assert column(answer, "aggregator") == [
        "one_bit, peer access", "all_reduce, exact, peer access",
        "one_bit, host-only", "all_reduce, exact, host-only",
    ]  # fmt: skip
    assert column(answer, "points") == ["-1.00", MISSING] * 2


def add_memory(study, aggregator, world_size, step_s, gigabytes):
    steps = [[step_s * (1 + 0.0005 * launch)] * 6 for launch in range(3)]
    memory = {"memory_peak_bytes": [int(gigabytes * 1e9)] * world_size} if gigabytes else {}
    study.add_steps(steps, aggregator=aggregator, world_size=world_size, summary=memory, **GPU)


@pytest.fixture
def sharded(study):
    for cell in (("all_reduce", 2, 0.079, 16.1), ("zero2", 2, 0.0785, 15.1), ("fsdp2", 2, 0.107, 15.0)):
        add_memory(study, *cell)
    return study


def test_least_memory_on_fewer_workers_says_on_how_many(sharded):
    for cell in (("zero2", 4, 0.2, None), ("all_reduce", 4, 0.1, 12.0), ("ring", 2, 0.3, 9.0)):
        add_memory(sharded, *cell)
    answer = answered(sharded, "memory")
    assert answer.sentence.startswith("ring on 2 GPUs needs the least memory: ")
    assert column(answer, "least memory") == ["ring on 2"]
    add_memory(sharded, "none", 1, 0.3, 8.0)
    assert answered(sharded, "memory").sentence.startswith("1 GPU needs the least memory: 8.00 GB at 300")
    assert column(answered(sharded, "memory"), "least memory") == ["one worker"]


@pytest.mark.usefixtures("without_figures")
def test_memory_is_said_with_its_time_and_of_ties_the_fastest_and_pages_begin_with_it(sharded):
    made = write_report(sharded.folder)
    said = made.answer[0]
    assert said.startswith("zero2 on 2 GPUs needs the least memory: 15.1 GB")
    answer = answered(sharded, "memory")
    times = "15.1 GB at 78.5 ms a step; DDP: 16.1 GB at 79.0 ms."
    assert answer.sentence == f"zero2 on 2 GPUs needs the least memory: {times}"
    assert answer.table.headings == ["workload", "GPUs", "DDP, GB", "DDP, ms", "least memory", "GB", "ms"]
    assert said in made.page.read_text().partition("<main>")[0]
    assert made.markdown().partition("> ")[2].startswith(said)
    assert "Memory against time" in made.markdown().partition("##### ")[0][:600]
    assert "measure 1 GPU too" not in " ".join(made.answer), "no single worker is asked for"


@pytest.mark.usefixtures("without_figures")
def test_study_without_such_settings_is_answered_by_its_verdict(study):
    add(study, "none", 1, 1.0)
    assert answers_to("memory", *table_of(study)) == []
    assert write_report(study.folder).answer[0].startswith("On 1 worker (no other number was measured): ")
