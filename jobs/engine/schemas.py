"""Schema registry: schemas of job types by version, and what becomes of jobs that do not match
(OJS schema registry).

A process keeps what it has read of the registry, and the token of that state. The statement that
stores jobs compares the token with the registry's own, and stores nothing if it has changed: then
the process reads the registry again. So a change is in force everywhere at once, and jobs pay
nothing where there is no schema.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

from ..conf import ojs_settings
from ..errors import (
    BreakingChange,
    InvalidArguments,
    InvalidSchema,
    NotFound,
    NotInstalled,
    SchemaExists,
    SchemaInUse,
)
from ..models import JobSchema, SchemaMode, SchemaRegistry, Tenant, ValidationMode
from ..spec.batches import UniformBatch
from ..spec.fields import refuse
from ..spec.json_schema import ArgumentsSchema, Mistake, check_schema, compiled
from ..spec.operator_requests import MOST_VERSIONS, SetValidation
from ..spec.schema_changes import Change, breaking_changes
from ..spec.validation import NewJob
from ..spec.versions import MINORS, VERSION
from ..store import clock
from ..store.contract import ANY_REGISTRY
from ..store.database import alias, atomic

logger = logging.getLogger("jobs.schemas")

MOST_DETAILED = 100
"""Jobs of one request whose mistakes are all listed; of the others, one."""
MOST_LINKS = 5
"""Mistakes that a message repeats; the details have them all."""
MOST_USERS = 20
"""Workers that a refusal to delete names."""

declared_by: list[Callable[[str, int], list[str]]] = []
"""Functions that return who declares that it takes a version of a type, given as its number."""


# Versions


def read_version(version: str | int) -> tuple[int, int]:
    """Return the number of the major and minor version, and the patch (OJS schema registry §6.1).

    Raises:
        InvalidRequest: it is not `2`, `2.0` or `2.0.0`.
    """
    found = VERSION.fullmatch(str(version)) if type(version) in (str, int) else None
    if found is None:
        raise refuse(
            "version",
            f"The 'version' field must be a version such as '2.0.0', not {version!r:.64}.",
            validation="format",
        )
    return int(found[1]) * MINORS + int(found[2] or 0), int(found[3] or 0)


def find(type: str, version: str | int) -> JobSchema:
    """
    Raises:
        NotFound: this version has no schema.
    """
    number, patch = read_version(version)
    found = JobSchema.objects.filter(type=type, version_number=number, patch=patch).first()
    if found is None:
        raise _not_found(f"{type}@{version}")
    return found


def find_by_uri(uri: str) -> JobSchema:
    """
    Raises:
        NotFound: no schema has this URI.
    """
    found = JobSchema.objects.filter(uri=uri).first()
    if found is None:
        raise _not_found(uri)
    return found


def latest(type: str) -> JobSchema:
    """Return the schema with the highest version (OJS schema registry §6.3).

    Raises:
        NotFound: the type has no schema.
    """
    found = JobSchema.objects.filter(type=type).order_by("-version_number", "-patch").first()
    if found is None:
        raise _not_found(type)
    return found


def versions(type: str) -> list[JobSchema]:
    """Return all versions of a type, newest first, without their schemas.

    Raises:
        NotFound: the type has no schema.
    """
    rows = JobSchema.objects.filter(type=type).order_by("-version_number", "-patch")
    found = list(rows.defer("schema", "compatible_with"))
    if not found:
        raise _not_found(type)
    return found


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"No schema of '{name}' is registered.",
        hint="Register it with POST /ojs/v1/schemas.",
        resource_type="schema",
        resource_id=name,
    )


# Changes of the registry


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """A transaction that changes the registry or the limits of tenants, or deletes queues.

    They take turns: a check holds until the commit. Afterwards every process reads them again
    before it stores a job.
    """
    with atomic():
        SchemaRegistry.objects.get_or_create(pk=1, defaults={"token": uuid4().hex})
        SchemaRegistry.objects.select_for_update().get(pk=1)
        yield
        SchemaRegistry.objects.filter(pk=1).update(token=uuid4().hex)


@dataclass(frozen=True)
class Comparison:
    """A schema compared with that of the version before it."""

    previous: JobSchema | None
    """None for the first version."""
    changes: list[Change]
    """Breaking changes."""
    is_major: bool
    """Its major version is higher, so that it may break the others."""

    @property
    def is_allowed(self) -> bool:
        return self.is_major or not self.changes


def compare(type: str, version: str | int, schema: dict[str, Any]) -> Comparison:
    """Compare a schema with the version before it (OJS schema registry §8.1).

    One that is not valid, which an older server may have stored, is not compared.
    """
    number, patch = read_version(version)
    rows = JobSchema.objects.filter(type=type, version_number__lte=number)
    rows = rows.exclude(version_number=number, patch__gte=patch)
    previous = rows.order_by("-version_number", "-patch").first()
    if previous is None:
        return Comparison(None, [], True)
    is_comparable = _is_valid(previous.schema) and _is_valid(schema)
    changes = breaking_changes(previous.schema, schema) if is_comparable else []
    return Comparison(previous, changes, previous.version_number // MINORS < number // MINORS)


def _is_valid(schema: Any) -> bool:
    try:
        check_schema(schema, as_before=True)
    except (InvalidSchema, NotInstalled):
        return False
    return True


def register(
    type: str,
    version: str | int,
    schema: dict[str, Any],
    *,
    uri: str = "",
    compatible_with: Sequence[str] = (),
    replaces: bool = False,
    as_before: bool = False,
) -> tuple[JobSchema, bool]:
    """Register the schema of a version; return it and whether it is new (§4.1).

    Args:
        uri: how jobs may name it; by default `urn:ojs:schema:TYPE:vVERSION`.
        replaces: replace the schema that the version has (OJS job versioning §11.1).
        as_before: accept `items` as a list, the notation of before 2020-12.

    Raises:
        InvalidSchema: it is no JSON Schema 2020-12, or too large.
        SchemaExists: the version has a schema, or another one has the URI.
        BreakingChange: it breaks the version before it, which has the same major number (§8.4).
        InvalidRequest: the version is not valid, or the type has too many.
        NotInstalled: the extra `schemas` is not installed.
    """
    number, patch = read_version(version)
    check_schema(schema, as_before=as_before)
    name = f"{type}@{version}"
    now = clock.now()
    with changing():
        known = JobSchema.objects.filter(type=type)
        row = known.filter(version_number=number, patch=patch).first()
        if row is not None and not replaces:
            raise SchemaExists(f"'{name}' has a schema already.", job_type=type, version=version)
        if row is None and known.count() >= MOST_VERSIONS:
            raise refuse("version", f"'{type}' has {MOST_VERSIONS} versions already.")
        _refuse_breaking(compare(type, version, schema), version, number)
        uri = uri or (row.uri if row else f"urn:ojs:schema:{type}:v{version}")
        others = JobSchema.objects.filter(uri=uri)
        if (others.exclude(pk=row.pk) if row else others).exists():
            raise SchemaExists(f"Another schema has the URI '{uri}'.", uri=uri)
        wanted: dict[str, Any] = {
            "version": str(version),
            "uri": uri,
            "schema": schema,
            "compatible_with": list(compatible_with),
            "updated_at": now,
        }
        if row is not None:
            known.filter(pk=row.pk).update(**wanted)
            row.refresh_from_db()
            return row, False
        key = {"type": type, "version_number": number, "patch": patch}
        return JobSchema.objects.create(**key, **wanted, created_at=now), True


def _refuse_breaking(found: Comparison, version: str | int, number: int) -> None:
    if found.is_allowed or found.previous is None:
        return
    major = number // MINORS + 1
    raise BreakingChange(
        f"Schema version {version} introduces breaking changes compared to "
        f"{found.previous.version}. Use a major version bump ({major}.0.0).",
        field="schema",
        previous_version=found.previous.version,
        breaking_changes=[str(change) for change in found.changes],
        changes=[change._asdict() for change in found.changes],
    )


def delete(type: str, version: str | int) -> JobSchema:
    """Delete the schema of a version; jobs that were enqueued with it stay as they are (§4.4).

    Raises:
        NotFound: this version has no schema.
        SchemaInUse: live workers declare a range of versions that includes it.
    """
    with changing():
        row = find(type, version)
        number = row.version_number
        others = JobSchema.objects.filter(type=type, version_number=number).exclude(pk=row.pk)
        users = [] if others.exists() else users_of(type, number)
        if users:
            raise SchemaInUse(
                f"'{row}' cannot be deleted: {len(users)} live workers declare that they take "
                "this version.",
                hint="Stop them, or deploy workers that declare other versions.",
                job_type=type,
                version=row.version,
                workers=users[:MOST_USERS],
            )
        JobSchema.objects.filter(pk=row.pk).delete()
    return row


def users_of(type: str, number: int) -> list[str]:
    """Return the ids of live workers that declare this version of the type."""
    return [name for find in declared_by for name in find(type, number)]


def set_mode(mode: str | None, *, type: str = "", queue: str = "") -> None:
    """Set the validation mode of a type, a queue, a type in a queue, or, without both, of the rest.

    Args:
        mode: None: no longer one of its own.

    Raises:
        InvalidRequest: there is no such mode, or cannot be such a type or queue.
    """
    SetValidation.type.check(type, "type")
    SetValidation.queue.check(queue, "queue")
    if mode is not None and mode not in ValidationMode.values:
        known = ", ".join(ValidationMode.values)
        raise refuse("mode", f"The 'mode' field must be one of {known}, not {mode!r:.64}.")
    target = SchemaMode.objects.filter(type=type, queue=queue)
    with changing():
        if mode is None:
            target.delete()
        else:
            SchemaMode.objects.update_or_create(
                type=type, queue=queue, defaults={"mode": mode, "updated_at": clock.now()}
            )


def default_mode() -> str:
    return str(ojs_settings.SCHEMA_VALIDATION)


def mode_of(modes: dict[tuple[str, str], str], type: str, queue: str) -> str:
    """Return the mode in force: the most specific one that is set.

    Args:
        modes: type and queue → mode; see `modes`.
    """
    for target in ((type, queue), (type, ""), ("", queue), ("", "")):
        if target in modes:
            return modes[target]
    return default_mode()


def modes() -> dict[tuple[str, str], str]:
    """Return every mode that is set, by type and queue."""
    rows = SchemaMode.objects.order_by("type", "queue")
    return {(type, queue): mode for type, queue, mode in rows.values_list("type", "queue", "mode")}


# Validation


class Known(NamedTuple):
    """A registered schema."""

    pk: int
    type: str
    number: int
    version: str


@dataclass
class Registry:
    """The state of the registry that has this token."""

    token: str = ""
    """Empty: nothing was ever registered."""
    versions: dict[str, list[Known]] = field(default_factory=dict)
    """Newest first."""
    uris: dict[str, Known] = field(default_factory=dict)
    modes: dict[tuple[str, str], str] = field(default_factory=dict)
    compiled: dict[int, ArgumentsSchema | None] = field(default_factory=dict)
    tenants: dict[str, bool] = field(default_factory=dict)
    """Tenants with limits or a priority of their own; whether their active jobs are limited."""
    queues: set[str] = field(default_factory=set)
    """Queues that this process has made sure of since it read the registry."""

    def schema_of(self, job: NewJob) -> Known | None:
        """Return the schema of a job's arguments: the one it names, that of its version, or the
        latest one if it has no version (OJS schema registry §9.2)."""
        versions = self.versions.get(job.type)
        if not versions:
            return None
        named = self.uris.get(job.attributes.get("schema", ""))
        if named is not None and named.type == job.type:
            return named
        if job.version_number is None:
            return versions[0]
        return next((each for each in versions if each.number == job.version_number), None)

    def compiled_of(self, known: Known) -> ArgumentsSchema | None:
        """Return the compiled schema; None for one that an older server stored unchecked.

        Raises:
            NotInstalled: the extra `schemas` is not installed here.
        """
        if known.pk not in self.compiled:
            rows = JobSchema.objects.filter(pk=known.pk)
            schema = rows.values_list("schema", flat=True).first()
            try:
                check_schema(schema, as_before=True)
                self.compiled[known.pk] = compiled(schema)
            except NotInstalled:
                raise
            except Exception as problem:
                logger.error(
                    "Jobs are not validated: the schema of %s@%s is not valid: %s",
                    known.type,
                    known.version,
                    problem,
                )
                self.compiled[known.pk] = None
        return self.compiled[known.pk]


_read: defaultdict[str, Registry] = defaultdict(Registry)
"""By database alias."""


def current_token() -> str:
    """Return the token of the registry as the database has it now."""
    return SchemaRegistry.objects.values_list("token", flat=True).first() or ""


def is_stale(token: str) -> bool:
    return token != ANY_REGISTRY and token != current_token()


def refresh() -> None:
    """Read the registry again if it has changed, for checks of jobs that are not stored now."""
    if is_stale(_read[alias()].token):
        read_again()


def forget() -> None:
    """Forget what this process has read of the registry."""
    _read.clear()


def read_again() -> Registry:
    """Read the registry again: it has changed since this process read it."""
    # The token first: what is read afterwards is as new, or newer and then read again.
    found = Registry(current_token())
    rows = JobSchema.objects.order_by("type", "-version_number", "-patch")
    columns = ("pk", "type", "version_number", "version", "uri")
    for pk, type, number, version, uri in rows.values_list(*columns):
        known = Known(pk, type, number, version)
        found.versions.setdefault(known.type, []).append(known)
        if uri:
            found.uris[uri] = known
    found.modes = modes() if found.versions else {}
    limited = Tenant.objects.limited().values_list("pk", "max_concurrency")
    found.tenants = {name: most is not None for name, most in limited}
    _read[alias()] = found
    return found


def known_queues() -> set[str]:
    """Return the queues that this process has made sure of since it last read the registry.

    A set of its own after each reading: what is added to one that was read before has no effect.
    """
    return _read[alias()].queues


def are_registered() -> bool:
    """Whether there were schemas when this process last stored a job."""
    return bool(_read[alias()].versions)


def limited_tenants() -> dict[str, bool]:
    """Return tenants whose new jobs must be admitted; whether their active jobs are limited.

    As this process knew them when it last called `checked`; the token it got then covers them.
    """
    return _read[alias()].tenants


def checked(
    new: Sequence[NewJob], *, reread: bool = False, lenient: bool = False
) -> tuple[Sequence[NewJob], str]:
    """Check the arguments of new jobs; return the jobs to store, and the token to store them with.

    A job that does not match gets `warnings` where its mode is `warn` (OJS schema registry §7.3).

    Args:
        reread: the registry has changed since this process read it.
        lenient: these jobs were accepted earlier: do not refuse them.

    Raises:
        InvalidArguments: a job does not match its schema, and its mode is `strict`.
        NotInstalled: its mode is `strict`, and the extra `schemas` is not installed.
    """
    registry = read_again() if reread else _read[alias()]
    try:
        return _checked(registry, new, lenient), registry.token
    except (InvalidArguments, NotInstalled):
        # Not by what may have been changed since this process read it.
        if reread or not is_stale(registry.token):
            raise
    return checked(new, reread=True, lenient=lenient)


def _checked(registry: Registry, new: Sequence[NewJob], lenient: bool) -> Sequence[NewJob]:
    if not registry.versions:
        return new
    if type(new) is UniformBatch and not new.made:
        return _checked_uniform(registry, new, lenient)
    rules: dict[tuple[str, str, int | None, Any], _Rule | None] = {}
    for index, job in enumerate(new):
        if job.warnings is not None:
            job.warnings = None
            job.attributes.pop("warnings", None)
        key = (job.type, job.queue, job.version_number, job.attributes.get("schema"))
        if key not in rules:
            rules[key] = _rule_of(registry, job, lenient)
        rule = rules[key]
        if rule is not None and not rule.schema.accepts(job.args):
            rule.apply(job, index, len(new))
    _log(rules.values())
    return new


def _checked_uniform(registry: Registry, new: UniformBatch, lenient: bool) -> Sequence[NewJob]:
    """The same for jobs that differ only in their arguments; job objects are made for warnings."""
    rule = _rule_of(registry, new.model, lenient)
    if rule is None:
        return new
    wrong = rule.schema.refused(new.args)
    if not wrong:
        return new
    if rule.is_strict:
        raise rule.refusal(new.args[wrong[0]], wrong[0], len(new))
    for index in wrong:
        rule.apply(new.jobs[index], index, len(new))
    _log([rule])
    return list(new)


@dataclass
class _Rule:
    known: Known
    schema: ArgumentsSchema
    is_strict: bool
    warned: int = 0
    mistakes: list[Mistake] = field(default_factory=list)
    """Of the first job that was warned of."""

    def apply(self, job: NewJob, index: int, count: int) -> None:
        if self.is_strict:
            raise self.refusal(job.args, index, count)
        mistakes = self.schema.mistakes(job.args, brief=self.warned >= MOST_DETAILED)
        job.warnings = [f"Schema validation warning: {mistake}" for mistake in mistakes]
        job.attributes = job.attributes | {"warnings": job.warnings}
        if not self.warned:
            self.mistakes = mistakes
        self.warned += 1

    def refusal(self, args: list[Any], index: int, count: int) -> InvalidArguments:
        mistakes = self.schema.mistakes(args)
        name = f"{self.known.type}@{self.known.version}"
        details: dict[str, Any] = {"index": index} if count > 1 else {}
        which = f"Job {index} of the batch: " if count > 1 else ""
        return InvalidArguments(
            f"{which}Job arguments do not match schema for {name}. {_summary(mistakes)}",
            field="args",
            job_type=self.known.type,
            schema_version=self.known.version,
            validation_errors=[mistake.message for mistake in mistakes],
            errors=[mistake._asdict() for mistake in mistakes],
            **details,
        )


def _rule_of(registry: Registry, job: NewJob, lenient: bool) -> _Rule | None:
    known = registry.schema_of(job)
    if known is None:
        return None
    mode = mode_of(registry.modes, job.type, job.queue)
    if mode == ValidationMode.OFF:
        return None
    is_strict = mode == ValidationMode.STRICT and not lenient
    try:
        schema = registry.compiled_of(known)
    except NotInstalled:
        if is_strict:
            raise
        return None
    return None if schema is None else _Rule(known, schema, is_strict)


def _log(rules: Any) -> None:
    for rule in rules:
        if rule is not None and rule.warned:
            logger.warning(
                "Arguments of %d jobs do not match the schema of %s@%s. %s",
                rule.warned,
                rule.known.type,
                rule.known.version,
                _summary(rule.mistakes),
            )


def _summary(mistakes: Sequence[Mistake]) -> str:
    shown = "; ".join(str(mistake) for mistake in mistakes[:MOST_LINKS])
    rest = len(mistakes) - MOST_LINKS
    return f"{shown}; and {rest} more." if rest > 0 else f"{shown}."


def mistakes_in(
    type: str, args: list[Any], *, version: str | int | None = None
) -> tuple[JobSchema, list[Mistake]]:
    """Check arguments against a registered schema without enqueueing anything.

    Args:
        version: None: the latest.

    Raises:
        NotFound: there is no such schema.
        NotInstalled: the extra `schemas` is not installed.
    """
    row = latest(type) if version is None else find(type, version)
    return row, compiled(row.schema).mistakes(args)
