"""Job ids in Flare: `job_` and a ULID, which is the job's UUID in Crockford's base 32."""

from __future__ import annotations

from uuid import UUID

from jobs.errors import JobNotFound
from jobs.spec.identifiers import parse_uuid

PREFIX = "job_"
DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
VALUES = {digit: value for value, digit in enumerate(DIGITS)}
LENGTH = 26


def write(job_id: UUID) -> str:
    number = job_id.int
    digits = [DIGITS[number >> shift & 31] for shift in range(5 * (LENGTH - 1), -1, -5)]
    return PREFIX + "".join(digits)


def read(text: str) -> UUID:
    """Return the job that `text` names, in the spelling of Flare or OJS.

    Raises:
        JobNotFound: this cannot be the id of a job.
    """
    digits = text.removeprefix(PREFIX).upper()
    if text.startswith(PREFIX) and len(digits) == LENGTH and VALUES.keys() >= set(digits):
        number = 0
        for digit in digits:
            number = number << 5 | VALUES[digit]
        if number < 1 << 128:
            return UUID(int=number)
    found = parse_uuid(text)
    if found is None:
        raise JobNotFound(text)
    return found
