"""UUIDv7 identifiers (RFC 9562 §5.7, JSON format §6)."""

from __future__ import annotations

import threading
import time
from uuid import UUID, uuid4

import pytest

from jobs.spec.identifiers import UUID7_PATTERN, draw, parse_uuid, uuid7


def test_an_id_has_the_form_the_document_asks_for():
    made = uuid7()

    assert made.version == 7
    assert UUID7_PATTERN.fullmatch(str(made))
    assert str(made) == str(made).lower()


def test_an_id_begins_with_the_time_in_milliseconds():
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000

    # Ids that were created faster than the clock runs are a little ahead of it.
    assert before <= made.int >> 80 <= after + 1000


def test_ids_grow_strictly():
    """They break ties between jobs of one batch: first in, first out."""
    made = [uuid7() for _ in range(20_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_drawn_at_once_are_as_those_drawn_one_by_one():
    before = uuid7()
    drawn = draw(5_000)
    after = uuid7()

    made = [UUID(bytes=drawn[start : start + 16]) for start in range(0, len(drawn), 16)]
    ids = [before, *made, after]
    assert len(made) == 5_000
    assert ids == sorted(set(ids))
    assert all(UUID7_PATTERN.fullmatch(str(each)) for each in made)
    ones = sum((each.int & (2**62 - 1)).bit_count() for each in made) / len(made)
    assert 30 < ones < 32


def test_threads_never_make_the_same_id():
    made: list[UUID] = []

    def make() -> None:
        made.extend(uuid7() for _ in range(1_000))
        drawn = draw(1_000)
        made.extend(UUID(bytes=drawn[start : start + 16]) for start in range(0, 16_000, 16))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(made)) == len(made) == 8_000


def test_the_rest_is_random():
    """Ids of two processes in the same moment differ by 62 bits."""
    made = [uuid7().int & (2**62 - 1) for _ in range(1_000)]

    assert len(set(made)) == len(made)
    ones = sum(number.bit_count() for number in made) / len(made)
    assert 29 < ones < 33


def test_any_uuid_is_read_whatever_its_case():
    one = uuid4()

    assert parse_uuid(str(one)) == one
    assert parse_uuid(str(one).upper()) == one


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x" * 36,
        "019461a81a2b7c3d8e4f5a6b7c8d9e0f",
        "{019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f}",
        "019461a8-1a2b-7c3d-8e4f5-a6b7c8d9e0f",
        "0194-61a8-1a2b-7c3d-8e4f-5a6b7c8d9e0",
        "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0\x00",
        "١19461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e_f",
        None,
        7,
        b"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
    ],
)
def test_everything_else_is_no_id(text):
    assert parse_uuid(text) is None
