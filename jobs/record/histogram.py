"""Histograms of durations: small enough to store by the minute, accurate to a fifth."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db.models import Func, IntegerField

LAST = 63
"""Bucket n holds durations from √2ⁿ to √2ⁿ⁺¹ milliseconds: one millisecond to a month."""


class Bucket(Func):
    """The bucket of the time between two moments."""

    output_field = IntegerField()

    def __init__(self, earlier: Any, later: Any, **extra: Any) -> None:
        super().__init__(later, earlier, **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        # In double precision: with the logarithm of a `numeric`, which `extract` returns, counting
        # takes four times as long.
        template = (
            f"least({LAST}, floor(2 * ln("
            "greatest(1000 * date_part('epoch', %(expressions)s), 1)) / ln(2.0::float8))::int)"
        )
        return super().as_sql(compiler, connection, template=template, arg_joiner=" - ", **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = (
            f"min({LAST}, CAST(2 * LN("
            "max(86400000.0 * (julianday(%(expressions)s)), 1.0)) / LN(2.0) AS INTEGER))"
        )
        return super().as_sql(
            compiler, connection, template=template, arg_joiner=") - julianday(", **extra
        )


def put(histogram: dict[str, int], bucket: int | None, jobs: int) -> None:
    """Count `jobs` in a bucket; None is an unknown duration, and not counted."""
    if bucket is not None:
        histogram[str(bucket)] = histogram.get(str(bucket), 0) + jobs


def added(one: Any, other: Any) -> Any:
    """The sum of two numbers or of two histograms; None counts as zero."""
    if not isinstance(other, Mapping):
        return (one or 0) + other
    total = dict(one or {})
    add(total, other)
    return total


def add(total: dict[str, Any], other: Mapping[str, float]) -> None:
    """Add a histogram to another one."""
    for bucket, jobs in other.items():
        total[bucket] = total.get(bucket, 0) + jobs


def scaled(histogram: Mapping[str, int], part: float) -> Mapping[str, float]:
    """The histogram of a part of the jobs, as if durations were spread evenly over all of them."""
    return histogram if part == 1 else {bucket: jobs * part for bucket, jobs in histogram.items()}


def percentile(histogram: Mapping[str, float], share: float) -> timedelta | None:
    """The time that `share` of the jobs stayed below, to a fifth; None if there are none."""
    wanted = sum(histogram.values()) * share
    seen: float = 0
    for bucket in sorted(histogram, key=int):
        seen += histogram[bucket]
        if seen >= wanted:
            number = int(bucket)
            # The first bucket begins at zero; the others have a middle.
            return timedelta(milliseconds=2 ** ((number + 0.5) / 2) if number else 1)
    return None
