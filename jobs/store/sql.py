"""Statements in files that psql runs as they are.

`psql -f jobs/store/postgres/claim.sql` works: the file sets each parameter to an example first.
`:'name'` is a parameter, sent beside the statement; `:name` is a number written into it, where the
planner has to know it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

PARAMETER = re.compile(r":'(\w+)'")
ASIDE = re.compile(r"\s*(?:--|\\)")
"""A comment, or a command to psql."""


class Statement(str):
    """The text of a statement as psycopg takes it, with `%(name)s` for each parameter."""

    __slots__ = ()

    @classmethod
    def written(cls, text: str) -> Statement:
        """Return the statement that `text` is in the notation of the files."""
        return cls(PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")))

    def replacing(self, part: str, other: str) -> Statement:
        """Return the variant that has `other` for `part`, both in the notation of the files.

        Raises:
            LookupError: there is no such part.
        """
        before = Statement.written(part)
        if before not in self:
            raise LookupError(f"The statement has no such part: {part}")
        return Statement(self.replace(before, Statement.written(other)))

    def sized(self, **numbers: int) -> Statement:
        """Return the variant with these numbers written into it."""
        return _sized(self, tuple(numbers.items()))


def read(package: str, name: str) -> str:
    """Return the statement of the file `name`.sql in `package`, without what is not for us."""
    text = (files(package) / f"{name}.sql").read_text()
    lines = [line for line in text.splitlines() if line.strip() and not ASIDE.match(line)]
    return "\n".join(lines).rstrip(";") + "\n"


def load(package: str, name: str) -> Statement:
    return Statement.written(read(package, name))


@lru_cache(maxsize=1024)
def _sized(statement: Statement, numbers: tuple[tuple[str, int], ...]) -> Statement:
    text: str = statement
    for name, number in numbers:
        text = re.sub(rf"(?<![:\w]):{name}\b", str(int(number)), text)
    return Statement(text)
