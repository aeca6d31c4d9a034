"""What the report makes of products and convolutions: who is faster, how exact, and the workspace."""

import numpy as np
import pytest

from scaling.device_studies.declaration import DEVICES
from scaling.device_studies.kernel_choices import REPORT
from scaling.report.device import device_tables, figures
from scaling.report.device.comparisons import least
from scaling.report.device.findings import groups_of
from scaling.report.formats import MISSING
from tests.report.device.conftest import sentences_of


def samples(seconds):
    """Times of a launch with a median of those seconds; of several their launches."""
    medians = seconds if isinstance(seconds, list) else [seconds]
    return [[median * (1 + 0.01 * step) for step in (-1, -1, 0, 0, 0, 1, 1)] for median in medians]


def product(choice, seconds, precision="float32", device="cuda", extra=(), error=1e-7):
    point = {"operation": "matmul", "case": "2048x26752", "batch": 1024, "choice": choice}
    how = {"launches": samples(seconds), "device": device, "facts": {"flop": 10**9, "error": error}}
    return {**how, "extra": extra, **point, "precision": precision, "workspace_cap": "none"}


def convolution(choice, seconds, device="cuda", cap="none", workspace=None):
    facts = {"flop": 10**9, "error": 1e-7, **({} if workspace is None else {"workspace_bytes": workspace})}
    point = {"operation": "convolution", "case": "ResNet 3x3", "batch": 64, "choice": choice}
    how = {"launches": [[]] if seconds is None else samples(seconds), "planned": seconds is None}
    how["extra"] = [{"phase": "forward", "seconds": np.median(seconds or 0.0) / 3}] * 7
    return {**how, "device": device, "facts": facts, **point, "precision": "float32", "workspace_cap": cap}


@pytest.fixture
def results(results_of):
    return lambda *cells, **more: results_of("kernel-choices", cells, **more)


def row_of(table, place=0):
    return dict(zip(table.headings, table.rows[place], strict=True))


COPY = [{"phase": "transpose", "seconds": 0.002}] * 7
BOTH_AUTOTUNED = [convolution("autotuned", 0.060), convolution("older-interface", 0.030, workspace=10**7)]
ANSWERS = {
    "the copy is told": ([*(product(choice, 0.010) for choice in ("transposed", "already-transposed")),
     product("transpose-first", 0.012, extra=COPY)],
     "the GPU with W as it is stored (W transposed first 1.2 times as long) at batch 1,024 (seen in",),
    "transposing first wins": ([product("transposed", 0.020), product("transpose-first", 0.010, extra=COPY)],
     "with W transposed first (W as it is stored 2.0 times as long)"),
    "launches tell nothing": ([product("transposed", [0.0100, 0.0104, 0.0097]),
     product("transpose-first", [0.0102, 0.0098, 0.0103], extra=COPY)],
     "with W as it is stored or W transposed first (undecided) at"),
    "the fastest is not known": ([convolution("autotuned", 0.01), convolution("library", None)],
     "not measured yet, on the GPU for ResNet 3x3."),
    "of a device without any number": ([*(convolution(choice, None, device="cpu") for choice in ("library",
     "native")), convolution("library", 0.01)],
     "with the library's guess for ResNet 3x3 (seen in one launch). Not answered, as choices are not "
     "measured yet, on the CPU for ResNet 3x3."),
    "all that are not told apart": ([convolution("library", [0.0100, 0.0104, 0.0097]),
     convolution("autotuned", [0.0102, 0.0098, 0.0103]), convolution("fft", [0.05] * 3)],
     "with the library's guess or autotuned (undecided) for ResNet 3x3"),
    "the worst limit": ([*BOTH_AUTOTUNED, convolution("older-interface", 0.120, cap="1 MiB", workspace=1_000),
     convolution("older-interface", 0.060, cap="64 MiB", workspace=1_000)],
     "4.0 times for ResNet 3x3 with at most 1 MiB and 2.0 times for ResNet 3x3 with at most 64 MiB"),
}  # fmt: skip
FINDINGS = {
    "error of a precision": ([product("transposed", 0.010),
     product("transposed", 0.002, precision="tf32", error=3e-4)],
     "up to 1.0e-07), operations take 5.0 times as long as in TF32 (relative error up to 3.0e-04)"),
    "precision that is as long": ([product("transposed", [0.01001, 0.01, 0.01]),
     product("transposed", [0.01, 0.01001, 0.01], precision="bfloat16", error=3e-3)],
     "take 1.0 times (a tie within 3%) as long as in bfloat16"),
    "autotuning": ([convolution("library", 0.020), convolution("autotuned", 0.010)],
     "found by trying all, 2.0 times for ResNet 3x3 (seen",),
    "an older interface that does something": ([convolution("autotuned", [0.060] * 3),
     convolution("older-interface", [0.030] * 3, workspace=10_000_000)],
     "both autotuned, 0.50 times for ResNet 3x3: where it makes no difference"),
    "an older interface that may do nothing": ([convolution("autotuned", [0.0301, 0.0300, 0.0300]),
     convolution("older-interface", [0.0300, 0.0301, 0.0300], workspace=10_000_000)],
     "1.0 times (a tie within 3%) for ResNet 3x3: where it makes no"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "text"), ANSWERS.values(), ids=ANSWERS)
def test_answer(results, cells, text):
    assert text in sentences_of(results(*cells))[-1]


@pytest.mark.parametrize(("cells", "text"), FINDINGS.values(), ids=FINDINGS)
def test_what_is_found_besides(results, cells, text):
    *others, answer = sentences_of(results(*cells))
    assert any(text in other for other in others)
    assert "older" not in answer


def test_copy_is_a_column_and_the_rate_is_of_the_forward_pass(results):
    row = row_of(device_tables([results(*ANSWERS["the copy is told"][0])])[0], 1)
    assert (row["choice"], row["copy alone, ms"]) == ("W transposed first", "2.00")
    made = results(product("transposed", 0.010), convolution("library", 0.030, workspace=2_000_000))
    products, convolutions = (row_of(table) for table in device_tables([made]))
    assert products["TFLOP/s"] == convolutions["TFLOP/s"] == "0.100"
    assert convolutions["workspace, MB"] == "2.00"


def test_neither_what_is_not_measured_yet_nor_a_limited_choice_is_an_answer(results):
    """It may be the fastest."""
    made = results(convolution("autotuned", 0.01), convolution("library", None))
    assert "the convolution takes least" not in sentences_of(made)[-1]
    row = row_of(device_tables([made])[0])
    assert (row["choice"], row["forward and backward, ms"]) == ("the library's guess", MISSING)
    made = results(convolution("older-interface", 0.001, workspace=1), convolution("library", 0.01))
    (cells,) = groups_of(REPORT.answer[1], made, DEVICES[1]).values()
    assert [cell.point["choice"] for cell in least(cells)] == ["library"]


def test_limit_that_was_not_kept_is_said_and_costs_nothing(results):
    older = [("1 MiB", 0.120), ("64 MiB", 0.030)]
    limited = [convolution("older-interface", s, cap=cap, workspace=9_000_000) for cap, s in older]
    made = results(*BOTH_AUTOTUNED, *limited)
    (told,) = [text for text in sentences_of(made) if "did not keep the limit" in text]
    assert ("did not keep the limit of 1 MiB" in told, "64 MiB" in told) == (True, False)
    assert "1 MiB" not in sentences_of(made)[-1]


def test_without_a_gpu_the_answer_is_for_the_cpu_and_says_so(results):
    first, then = product("transposed", 0.010), product("transpose-first", 0.020, extra=COPY)
    cells = [{**one, "device": "cpu"} for one in (first, then, convolution("native", 0.01))]
    made = results(*cells, has_gpu=False)
    last = sentences_of(made)[-1]
    assert "on the CPU with W as it is stored (W transposed first 2.0 times as long)" in last
    assert "no GPU" in last
    assert [drawn.name.rsplit("-", 1)[-1] for drawn in figures(made)] == ["products", "convolutions"]


def test_workspace_is_drawn_where_it_was_measured_a_point_a_limit(results):
    limits = [("none", 80), ("64 MiB", 50), ("1 MiB", 1)]
    older = [convolution("older-interface", 0.03, cap=cap, workspace=mb * 10**6) for cap, mb in limits]
    drawn = [*figures(results(convolution("library", 0.03, workspace=0), *older))]
    expected = [f"device-kernel-choices-{name}" for name in ("convolutions", "workspace")]
    assert [one.name for one in drawn] == expected
    lines = {len(line.get_xdata()): line for line in drawn[-1].figure.axes[0].get_lines()}
    assert list(lines[3].get_xdata()) == [1, 50, 80]
