"""Series of a probe's samples: sizes as people read them."""

import pytest

from scaling.measure.probe.series import size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (4096, "4 KiB"), (1024**2 - 1024, "1023 KiB"),
        (1024**2, "1 MiB"), (3 * 1024**2 // 2, "1.5 MiB"), (1024**3, "1 GiB"), (2 * 1024**3, "2 GiB"),
    ],
)  # fmt: skip
def test_size_is_in_the_largest_unit_that_it_reaches(num_bytes, text):
    assert size_text(num_bytes) == text
