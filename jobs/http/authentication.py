"""Authentication by bearer key: finds the caller of a request and its rights (OJS HTTP §5)."""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.crypto import salted_hmac
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from ..access.address import address_of
from ..conf import ojs_settings
from ..errors import Conflict, InvalidRequest, KeyExpired, NotAuthenticated, PermissionDenied
from ..models import ApiKey, Scope
from ..protocols import OJS
from ..spec import tenants
from ..spec.timestamps import format_timestamp
from ..store.database import alias, atomic, connection
from .origins import check_page
from .request import Meta

CHALLENGE = 'Bearer realm="ojs"'
"""The `WWW-Authenticate` of every 401."""
PREFIX = "ojs_"
SHOWN = 12
USED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: an API key, or an anonymous client."""

    name: str = "anonymous"
    scopes: frozenset[str] = frozenset()
    worker_id: str = ""
    label: str = ""
    project: str = ""
    """The only project that it can access, that of its key or the tenant that it named; empty means
    all projects."""
    tenant: str = ""
    """The tenant that its request named, if its key has no project."""
    key_id: int | None = None
    """Primary key of the API key; its current and its previous secret have it in common."""
    is_authenticated: bool = True

    @property
    def is_bound(self) -> bool:
        """Whether it may act only for one worker, or for workers with one label."""
        return bool(self.worker_id or self.label)

    def may(self, scope: str, *, reads: bool = False) -> bool:
        return scope in self.scopes or Scope(scope).is_opened_by(self.scopes, reads=reads)


ANYBODY = Caller(scopes=frozenset(str(scope) for scope in Scope))
"""What anonymous clients may do if `ALLOW_ANONYMOUS` is on."""


def make_key(name: str, *, key: str = "", **fields: Any) -> tuple[ApiKey, str]:
    """Create a key; return its record and the key itself, which is not stored or shown again."""
    key = key or new_secret()
    record = ApiKey.objects.create(name=name, prefix=key[:SHOWN], digest=digest(key), **fields)
    return record, key


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def secret_for(form: str) -> str:
    """A secret that is the same each time for the same `form`, and is known to this site only."""
    derived = salted_hmac("ojs.api_key", form, algorithm="sha256").digest()
    return PREFIX + urlsafe_b64encode(derived).decode().rstrip("=")


class NotRotated(Conflict):
    """The key cannot be given a new secret."""


class StillOverlapping(NotRotated):
    """The secret before the current one still works."""


def rotate_key(record: ApiKey, *, overlap: timedelta, end_earlier: bool = False) -> str:
    """Give a key a new secret and return it. It is not stored, and cannot be shown again.

    Args:
        overlap: how long the current secret remains valid beside the new one; zero if it has
            leaked.
        end_earlier: if the secret before the current one is still valid, invalidate it now. A
            key has at most two secrets.

    Raises:
        NotRotated: the key is revoked or expired, or another request has just rotated it.
        StillOverlapping: the secret before the current one is still valid.
    """
    key = new_secret()
    rotatable = ApiKey.objects.usable().filter(pk=record.pk, digest=record.digest)
    if not end_earlier:
        rotatable = rotatable.filter(Q(previous_until=None) | Q(previous_until__lte=Now()))
    # Not a sum with zero: SQLite writes sums with more digits, and so would take it for later.
    until = Now() + overlap if overlap else Now()
    rotated = rotatable.update(
        previous_digest=F("digest"),
        previous_prefix=F("prefix"),
        previous_until=until,
        previous_used_at=None,
        digest=digest(key),
        prefix=key[:SHOWN],
        rotated_at=Now(),
    )
    if not rotated:
        raise _why_not_rotated(record)
    forget_keys()
    return key


def _why_not_rotated(record: ApiKey) -> NotRotated:
    known = ApiKey.objects.filter(pk=record.pk).first()
    until = known.previous_until if known else None
    if known is None or known.revoked_at:
        return NotRotated(f"The key “{record.name}” is revoked.")
    if not ApiKey.objects.usable().filter(pk=record.pk).exists():
        return NotRotated(f"The key “{record.name}” has expired.")
    if until is None or known.digest != record.digest:
        return NotRotated(f"The key “{record.name}” has been rotated meanwhile.")
    return StillOverlapping(
        f"The key “{record.name}” is being rotated already: its secret {known.previous_prefix}… "
        f"works until {format_timestamp(until)}."
    )


def digest(key: str) -> str:
    # A key has 256 random bits: a plain hash cannot be reversed by search, and takes a microsecond.
    return hashlib.sha256(key.encode()).hexdigest()


def key_of(meta: Meta) -> str:
    """Return the digest of the key that a request carries; empty without one."""
    key = meta.get("HTTP_AUTHORIZATION", "").partition(" ")[2].strip()
    return digest(key) if key else ""


_cache: dict[str, tuple[float, Caller]] = {}
CACHE_SIZE = 10_000


def forget_keys() -> None:
    _cache.clear()


def caller_of(key: str, *, protocol: str = "", address: str = "") -> Caller:
    """Return the caller that this key authenticates.

    Args:
        protocol: the client's protocol, and `address` its IP address: recorded as the last use.

    Raises:
        NotAuthenticated: the key is unknown or revoked.
        KeyExpired: the key or this secret has expired.
    """
    return current_caller(digest(key), protocol=protocol, address=address)


def current_caller(fingerprint: str, *, protocol: str = "", address: str = "") -> Caller:
    """Return the caller that the key with this digest authenticates now.

    An open connection keeps the digest of its key and calls this for each command. That costs no
    query while the result is cached: for `API_KEY_CACHE`, and never past the key's expiry. A
    revocation or a change of scopes or bindings takes effect within that time. Unknown keys are
    not cached: a key that another process has just created works immediately, and each use of an
    unknown key costs one index lookup.

    Args:
        protocol: the client's protocol, and `address` its IP address: recorded as the last use.

    Raises:
        NotAuthenticated: the key is unknown or revoked.
        KeyExpired: the key or this secret has expired.
    """
    remembered = _cache.get(fingerprint)
    if remembered is not None and remembered[0] > time.monotonic():
        return remembered[1]
    found, records = _look([fingerprint])
    caller = found[fingerprint]
    if isinstance(caller, NotAuthenticated):
        raise caller
    record = records[fingerprint]
    is_previous = fingerprint != record.digest
    _note_use(record, is_previous=is_previous, protocol=protocol, address=address)
    return caller


def current_callers(fingerprints: Collection[str]) -> dict[str, Caller]:
    """Query many keys at once, by their digests, bypassing the cache.

    For idle connections, so the query does not count as a use of the keys. Keys that are missing
    from the result are unknown, revoked or expired.
    """
    found, _ = _look(fingerprints)
    return {
        fingerprint: caller for fingerprint, caller in found.items() if isinstance(caller, Caller)
    }


def _look(
    fingerprints: Collection[str],
) -> tuple[dict[str, Caller | NotAuthenticated], dict[str | None, Any]]:
    """Look keys up by the digests of their secrets, and cache the valid ones.

    The digest reveals nothing about the key, nor does the time that a lookup takes.

    Returns:
        The callers of valid keys, or the errors of invalid ones; and the rows of known keys.
    """
    # Taken before the database reads its own clock, so that nothing is cached for too long.
    now = time.monotonic()
    # From the primary: a replica may not have received a new key or a revocation yet.
    keys = ApiKey.objects.using(alias()).with_secrets(fingerprints).annotate(asked_at=Now())
    records: dict[str | None, Any] = {}
    for record in keys.order_by("pk"):
        records |= {record.digest: record, record.previous_digest: record}
    found: dict[str, Caller | NotAuthenticated] = {}
    if len(_cache) + len(fingerprints) > CACHE_SIZE:
        _cache.clear()
    for fingerprint in fingerprints:
        try:
            lasts = _lasts(records.get(fingerprint), fingerprint)
        except NotAuthenticated as refusal:
            _cache.pop(fingerprint, None)
            found[fingerprint] = refusal
        else:
            caller = found[fingerprint] = _caller(records[fingerprint])
            until = now + min(lasts, ojs_settings.API_KEY_CACHE).total_seconds()
            _cache[fingerprint] = (until, caller)
    return found, records


def _lasts(record: Any, fingerprint: str) -> timedelta:
    """How long the secret remains valid after `asked_at`, by the database's clock.

    Raises:
        NotAuthenticated: it is not valid.
    """
    if record is None:
        raise NotAuthenticated("This API key is unknown or revoked.", reason="unknown_key")
    if record.revoked_at is not None:
        # Same text as for an unknown key, so that guessing reveals nothing.
        raise NotAuthenticated(
            "This API key is unknown or revoked.", reason="revoked_key", key=record.name
        )
    now: datetime = record.asked_at
    if record.expires_at is not None and record.expires_at <= now:
        raise KeyExpired(
            f"This API key expired at {format_timestamp(record.expires_at)}.",
            reason="expired_key",
            key=record.name,
        )
    is_previous = fingerprint != record.digest
    if is_previous and record.previous_until <= now:
        raise KeyExpired(
            "This API key was replaced by a new one, and stopped working at "
            f"{format_timestamp(record.previous_until)}.",
            reason="replaced_key",
            key=record.name,
        )
    ends = [record.expires_at, record.previous_until if is_previous else None]
    return min((end - now for end in ends if end is not None), default=timedelta.max)


def _caller(record: ApiKey) -> Caller:
    return Caller(
        name=record.name,
        scopes=frozenset(record.scopes),
        worker_id=record.worker_id,
        label=record.label,
        project=record.project,
        key_id=record.pk,
    )


def _note_use(record: Any, *, is_previous: bool, protocol: str, address: str) -> None:
    """Record that the key is in use, unless that was done within the last minute.

    Skips a locked row, so that no request waits for this.
    """
    now = record.asked_at
    noted = ["last_used_at", "previous_used_at"] if is_previous else ["last_used_at"]
    stale = [name for name in noted if _is_stale(getattr(record, name), now)]
    if not stale:
        return
    due = Q()
    for name in stale:
        due |= Q(**{name: None}) | Q(**{f"{name}__lte": Now() - USED_EVERY})
    keys = ApiKey.objects.filter(due, pk=record.pk)
    use = {
        "last_used_at": Now(),
        "last_used_protocol": protocol,
        "last_used_address": address[:255],
    }
    if is_previous:
        use["previous_used_at"] = Now()
    if not connection().features.has_select_for_update_skip_locked:
        keys.update(**use)
        return
    with atomic():
        if keys.select_for_update(skip_locked=True).values_list("pk").first() is not None:
            keys.update(**use)


def _is_stale(moment: datetime | None, now: datetime) -> bool:
    return moment is None or now - moment >= USED_EVERY


def for_tenant(caller: Caller, tenant: str) -> Caller:
    """Return the caller confined to the tenant that its request names (OJS multi-tenancy §5.3).

    Raises:
        PermissionDenied: its key belongs to another project.
        InvalidRequest: this is no tenant's id, or the server has no tenants.
    """
    if ojs_settings.MULTI_TENANCY == "off":
        raise InvalidRequest("This server has no tenants.", field=tenants.HEADER)
    if not caller.project:
        named = tenants.check_id(tenant, tenants.HEADER)
        return replace(caller, project=named, tenant=named)
    if tenant != caller.project:
        raise PermissionDenied(
            "This API key belongs to another tenant than the one in X-OJS-Tenant.",
            hint="Send the name of the key's project, or no X-OJS-Tenant.",
        )
    return caller


def confined(caller: Caller, meta: Meta) -> Caller:
    """Return the caller confined to the tenant in the header of its request, if that names one.

    Raises:
        PermissionDenied, InvalidRequest: as `for_tenant`.
    """
    tenant = meta.get(tenants.META_HEADER)
    return caller if tenant is None else for_tenant(caller, tenant)


def renewed(caller: Caller, before: Caller) -> Caller:
    """Return the current rights of a key for a connection that began as `before`.

    Raises:
        PermissionDenied: the connection named a tenant, and the key has another project now.
    """
    return for_tenant(caller, before.tenant) if before.tenant else caller


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>`, optional only with `ALLOW_ANONYMOUS`.

    `request.auth` is the `Caller`. `request.user` is the site's own user, if its middleware found
    one, and does not affect permissions: a key is not a person.
    """

    protocol: str = OJS
    """The protocol of the clients, for the record of a key's last use."""

    def authenticate(self, request: Request) -> tuple[Any, Caller]:
        user = getattr(request._request, "user", None)
        return user, self.caller(request.method or "", request.META)

    def caller(self, method: str, meta: Meta) -> Caller:
        """
        Raises:
            NotAuthenticated: there is no valid key, and one is required.
            PermissionDenied: none is required, but another site's page sent the request; or the key
                does not belong to the tenant in `X-OJS-Tenant`.
            InvalidRequest: that is no tenant's id.
        """
        return confined(self._caller(method, meta), meta)

    def _caller(self, method: str, meta: Meta) -> Caller:
        header: str = meta.get("HTTP_AUTHORIZATION", "")
        if header:
            scheme, _, key = header.partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                raise NotAuthenticated(
                    "The Authorization header must be 'Bearer <API key>'.", reason="malformed"
                )
            address = address_of(meta)
            return caller_of(key.strip(), protocol=self.protocol, address=address)
        if ojs_settings.ALLOW_ANONYMOUS:
            check_page(method, meta)
            return ANYBODY
        raise NotAuthenticated("An API key is required.")

    def authenticate_header(self, request: Request) -> str:
        return CHALLENGE
