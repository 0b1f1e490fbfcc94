"""Bearer keys → who asks, and what they may do (OJS HTTP §5)."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Now
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from ..access.address import address_of
from ..conf import ojs_settings
from ..errors import Conflict, KeyExpired, NotAuthenticated
from ..models import ApiKey, Scope
from ..protocols import OJS
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
    """Who sends a request: an API key, or an anonymous client."""

    name: str = "anonymous"
    scopes: frozenset[str] = frozenset()
    worker_id: str = ""
    label: str = ""
    project: str = ""
    """The only project it sees; empty means all of them."""
    key_id: int | None = None
    """Primary key of the API key: what both its secrets have in common."""
    is_authenticated: bool = True

    @property
    def is_bound(self) -> bool:
        """Whether it speaks for one worker, or for those with a label, and for no others."""
        return bool(self.worker_id or self.label)

    def may(self, scope: str, *, reads: bool = False) -> bool:
        return scope in self.scopes or Scope(scope).is_opened_by(self.scopes, reads=reads)


ANYBODY = Caller(scopes=frozenset(str(scope) for scope in Scope))
"""What everybody may where `ALLOW_ANONYMOUS` is on."""


def make_key(name: str, *, key: str = "", **fields: Any) -> tuple[ApiKey, str]:
    """Make a key; return its record and the key itself, which is not stored and shown only now."""
    key = key or new_secret()
    record = ApiKey.objects.create(name=name, prefix=key[:SHOWN], digest=digest(key), **fields)
    return record, key


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


class NotRotated(Conflict):
    """The key cannot be given a new secret."""


class StillOverlapping(NotRotated):
    """The secret before the present one still works."""


def rotate_key(record: ApiKey, *, overlap: timedelta, end_earlier: bool = False) -> str:
    """Give a key a new secret and return it: it is not stored, and shown only now.

    Args:
        overlap: how long the secret of until now goes on working beside the new one; none at all
            where it has leaked.
        end_earlier: what still works from the rotation before stops now. A key has two secrets.

    Raises:
        NotRotated: the key is revoked or expired, or was rotated meanwhile.
        StillOverlapping: the secret before the present one still works.
    """
    key = new_secret()
    rotatable = ApiKey.objects.usable().filter(pk=record.pk, digest=record.digest)
    if not end_earlier:
        rotatable = rotatable.filter(Q(previous_until=None) | Q(previous_until__lte=Now()))
    rotated = rotatable.update(
        previous_digest=F("digest"),
        previous_prefix=F("prefix"),
        previous_until=Now() + overlap,
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
    # A key carries 256 random bits: a plain hash cannot be searched, and costs a microsecond.
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
    """Return whose key this is.

    Args:
        protocol: what the client speaks, and `address` where it is: kept as the key's last use.

    Raises:
        NotAuthenticated: the key is unknown, or revoked.
        KeyExpired: its date has come, or that of this secret.
    """
    return current_caller(digest(key), protocol=protocol, address=address)


def current_caller(fingerprint: str, *, protocol: str = "", address: str = "") -> Caller:
    """Return who the key with this digest speaks for now.

    A connection that stays open keeps the digest of its key and asks again with each command, which
    costs no query while the answer is remembered: for `API_KEY_CACHE`, and never beyond the date of
    the key. A revocation, and a change of scopes or bindings, takes that long at most. What was
    not found is not remembered: a key that another process has just made works at once, and an
    unknown one costs one look into an index.

    Args:
        protocol: what the client speaks, and `address` where it is: kept as the key's last use.

    Raises:
        NotAuthenticated: the key is unknown, or revoked.
        KeyExpired: its date has come, or that of this secret.
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
    """Ask the database about many keys at once, by their digests, whatever is remembered of them.

    For the keys of connections on which nothing is said: it is no use of them. Those that are
    missing in what is returned are unknown, revoked or expired.
    """
    found, _ = _look(fingerprints)
    return {
        fingerprint: caller for fingerprint, caller in found.items() if isinstance(caller, Caller)
    }


def _look(
    fingerprints: Collection[str],
) -> tuple[dict[str, Caller | NotAuthenticated], dict[str | None, Any]]:
    """Look keys up by the digests of their secrets, and remember those that are good.

    A digest tells nothing of its key: there is nothing to be learnt from how long a search takes.

    Returns:
        Who they speak for, or why they open nothing; and the rows of those that are known.
    """
    # Taken before the database looks at its own clock, so that nothing is remembered for too long.
    now = time.monotonic()
    # Where it was written: a replica may not have heard of a new key, or of a revocation.
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
    """How long the secret stays good, from the database's time `asked_at` on.

    Raises:
        NotAuthenticated: not even now.
    """
    if record is None:
        raise NotAuthenticated("This API key is unknown or revoked.", reason="unknown_key")
    if record.revoked_at is not None:
        # In the words for a key that never was: who guesses shall learn nothing.
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
    """Write down that the key is in use, if that was not done within the last minute.

    A locked row is passed over: no request waits for its key to be noted.
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


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>`; without one only where `ALLOW_ANONYMOUS` says so.

    `request.auth` is the `Caller`. `request.user` is the site's own user, if its middleware found
    one, and has no say: a key is no person.
    """

    protocol: str = OJS
    """What the clients speak, for the record of a key's last use."""

    def authenticate(self, request: Request) -> tuple[Any, Caller]:
        user = getattr(request._request, "user", None)
        return user, self.caller(request.method or "", request.META)

    def caller(self, method: str, meta: Meta) -> Caller:
        """
        Raises:
            NotAuthenticated: there is no good key, and a key is asked for.
            PermissionDenied: none is asked for, and another site's page sends the request.
        """
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
