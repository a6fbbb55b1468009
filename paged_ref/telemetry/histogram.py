"""A histogram with a fixed number of counters, for latencies and their percentiles (chapter 6).

Bucket i counts the values above 10 ** ((i - 1) / 20) microseconds and up to 10 ** (i / 20) microseconds, so each
bucket is 12 % wider than the one before. A percentile read from it is off by less than that, whether it counted
a thousand values or a billion, and two histograms can be added bucket by bucket (which is why Prometheus uses
histograms).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

PER_DECADE = 20
# 1 microsecond to 1,000 seconds; values outside this range are counted in the first or the last bucket.
NUM_BUCKETS = 9 * PER_DECADE
_BOUNDS = [10 ** (i / PER_DECADE - 6) for i in range(NUM_BUCKETS + 1)]


class Histogram:
    """Counts of values in seconds.

    Attributes:
        count, total: number of values, and their sum.
        smallest, largest: of all values; infinite while there are none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest, self.largest = math.inf, -math.inf
        self._buckets = [0] * (NUM_BUCKETS + 2)  # the last one: above every bound

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, `count` times."""
        self.count += count
        self.total += value * count
        if value < self.smallest:
            self.smallest = value
        if value > self.largest:
            self.largest = value
        self._buckets[bisect_left(_BOUNDS, value)] += count

    @property
    def mean(self) -> float | None:
        """The mean of all values; None if there are none."""
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """Return the value that a fraction `q` of all values does not exceed, to 12 %; None if there are no values."""
        if not 0 <= q <= 1:
            raise ValueError(f"q = {q}: it must be a fraction from 0 to 1")
        wanted, seen = q * self.count, 0
        for i, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return min(max(_BOUNDS[min(i, NUM_BUCKETS)], self.smallest), self.largest)
        return None

    def cumulative(self, every: int = PER_DECADE // 4) -> Iterator[tuple[float, int]]:
        """Yield (upper bound, number of values up to it) at every `every`-th bucket, as a Prometheus histogram does."""
        seen = 0
        for i, count in enumerate(self._buckets[:-1]):
            seen += count
            if i % every == 0:
                yield _BOUNDS[i], seen
