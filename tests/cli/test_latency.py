"""Percentiles are within one percent, the longest is exact, and the number of samples costs no memory."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest

from turnkeeper.cli.latency import Latencies, format_seconds
from turnkeeper.cli.ram import peak_ram


def test_percentiles_are_within_one_percent() -> None:
    chance = random.Random(1)
    samples = [chance.lognormvariate(-6, 2) for _ in range(20_000)]
    latencies = Latencies()
    for seconds in samples:
        latencies.add(seconds)
    samples.sort()
    for percent in (50, 90, 99, 99.9):
        exact = samples[int(percent / 100 * (len(samples) - 1))]
        assert latencies.percentile(percent) == pytest.approx(exact, rel=0.011)
    assert latencies.longest == samples[-1]
    assert latencies.count == 20_000


def test_no_percentile_exceeds_the_longest() -> None:
    latencies = Latencies()
    for _ in range(10):
        latencies.add(0.123456)
    assert latencies.percentile(99.9) <= latencies.longest == 0.123456


def test_memory_does_not_grow_with_the_samples() -> None:
    latencies = Latencies()
    chance = random.Random(1)
    for _ in range(1000):
        latencies.add(chance.lognormvariate(-6, 2))
    tracemalloc.start()
    try:
        for _ in range(20_000):
            latencies.add(chance.lognormvariate(-6, 2))
        assert tracemalloc.get_traced_memory()[0] < 60_000  # the samples alone would take 640 000 bytes
    finally:
        tracemalloc.stop()


def test_without_samples_it_says_so() -> None:
    assert str(Latencies()) == "none"
    assert Latencies().percentile(50) == 0.0


def test_it_is_shown_with_all_percentiles() -> None:
    latencies = Latencies()
    latencies.add(0.0)
    latencies.add(0.25)
    shown = str(latencies)
    assert [word.split()[0] for word in shown.split("  ")] == ["p50", "p90", "p99", "p99.9", "max"]
    assert shown.endswith("max 250 ms")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0 µs"), (2.5e-5, "25 µs"), (0.0012345, "1.23 ms"), (0.9996, "1 s"), (12.34, "12.3 s"), (4321.0, "4321 s")],
)
def test_durations_have_three_digits_and_a_unit(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


def test_peak_ram_is_that_of_this_process_in_bytes() -> None:
    before = peak_ram()
    assert before is not None
    assert 10 * 2**20 < before < 64 * 2**30
    ballast = bytearray(before + 50 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    after = peak_ram()
    assert after is not None
    assert after >= before + 45 * 2**20
    assert sys.getsizeof(ballast) > 0
