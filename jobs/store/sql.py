"""Reads statements from files that psql can run as they are.

`psql -f jobs/store/postgres/claim.sql` works: the file first sets each parameter to an example.
`:'name'` is a parameter, sent separately from the statement; `:name` is a number written into it,
where the planner has to know it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

BESIDE_PUBLIC = "nullif('ojs_jobs_job'::regclass::oid, to_regclass('public.ojs_jobs_job')::oid)"
"""A number of the schema that the tables are in; NULL if that is `public`.

Several deployments, each in a schema of its own, share what PostgreSQL has once for a database:
channels of NOTIFY and advisory locks. It is the id of a table, which only this schema has.
"""
CHANNEL = f"concat('ojs_jobs', {BESIDE_PUBLIC})"
"""The channel of NOTIFY. The statements in files have it written out."""

PARAMETER = re.compile(r":'(\w+)'")
CTE = r"(?:\), |WITH ){name} AS (?:MATERIALIZED )?\(\n(?P<body>.*?\n)(?=\))"
"""In the files, no line within a CTE begins with the parenthesis that ends it."""
ASIDE = re.compile(r"\s*(?:--|\\)")
"""A comment, or a psql command."""


class Statement(str):
    """The text of a statement for psycopg, with `%(name)s` for each parameter."""

    __slots__ = ()

    @classmethod
    def written(cls, text: str) -> Statement:
        """Return the statement for `text`, which is in the notation of the files."""
        return cls(PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")))

    def replacing(self, part: str, other: str) -> Statement:
        """Return a variant with `other` in place of `part`, both in the notation of the files.

        Raises:
            LookupError: there is no such part.
        """
        before = Statement.written(part)
        if before not in self:
            raise LookupError(f"The statement has no such part: {part}")
        return Statement(self.replace(before, Statement.written(other)))

    def cte(self, name: str) -> Statement:
        """Return the body of a common table expression.

        Raises:
            LookupError: there is none of this name.
        """
        return Statement(self._cte(name)["body"])

    def without(self, name: str) -> Statement:
        """Return a variant without a common table expression that others precede.

        Raises:
            LookupError: there is none of this name.
        """
        return Statement(self.replace(self._cte(name)[0], ""))

    def _cte(self, name: str) -> re.Match[str]:
        found = re.search(CTE.format(name=name), self, re.DOTALL)
        if found is None:
            raise LookupError(f"The statement has no CTE: {name}")
        return found

    def sized(self, **numbers: int) -> Statement:
        """Return a variant with these numbers written into it."""
        return _sized(self, tuple(numbers.items()))


def read(package: str, name: str) -> str:
    """Return the statement of the file `name`.sql in `package`, without what is only for psql."""
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
