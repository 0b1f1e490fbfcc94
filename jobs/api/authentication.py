"""Bearer keys → who asks, and what they may do (OJS HTTP §5)."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication

from ..conf import ojs_settings
from ..errors import NotAuthenticated
from ..models import ApiKey, Scope

PREFIX = "ojs_"
SHOWN = 12
USED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: a key, or nobody in particular."""

    name: str = "anonymous"
    scopes: frozenset[str] = frozenset()
    worker_id: str = ""
    label: str = ""
    project: str = ""
    """The only project it sees; empty means all of them."""
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
    key = key or PREFIX + secrets.token_urlsafe(32)
    record = ApiKey.objects.create(name=name, prefix=key[:SHOWN], digest=digest(key), **fields)
    return record, key


def digest(key: str) -> str:
    # A key carries 256 random bits: a plain hash cannot be searched, and costs a microsecond.
    return hashlib.sha256(key.encode()).hexdigest()


_cache: dict[str, tuple[float, Caller]] = {}
CACHE_SIZE = 10_000


def forget_keys() -> None:
    _cache.clear()


def caller_of(key: str) -> Caller:
    """Return whose key this is.

    A checked key is remembered for `API_KEY_CACHE`, so a revocation takes that long at most.

    Raises:
        NotAuthenticated: it is unknown, or revoked.
    """
    return current_caller(digest(key))


def current_caller(fingerprint: str) -> Caller:
    """Return who the key with this digest speaks for now.

    A connection that stays open keeps the digest of its key and asks again with each command, which
    costs no query while the answer is remembered.

    Raises:
        NotAuthenticated: the key is unknown, or revoked.
    """
    remembered = _cache.get(fingerprint)
    if remembered is not None and remembered[0] > time.monotonic():
        return remembered[1]
    for record in _usable([fingerprint]):
        now = timezone.now()
        if record.last_used_at is None or now - record.last_used_at >= USED_EVERY:
            ApiKey.objects.filter(pk=record.pk).update(last_used_at=now)
        return _remember([record])[fingerprint]
    _cache.pop(fingerprint, None)
    raise NotAuthenticated("This API key is unknown or revoked.")


def current_callers(fingerprints: Collection[str]) -> dict[str, Caller]:
    """Ask the database about many keys at once, by their digests, whatever is remembered of them.

    For the keys of connections on which nothing is said: it is no use of them. Those that are
    missing in what is returned are unknown, or revoked.
    """
    found = _remember(_usable(fingerprints))
    for fingerprint in set(fingerprints).difference(found):
        _cache.pop(fingerprint, None)
    return found


def _usable(fingerprints: Collection[str]) -> Any:
    """The keys with these digests that open anything. A digest tells nothing of its key: there is
    nothing to be learnt from how long a search for it takes.
    """
    return ApiKey.objects.filter(digest__in=fingerprints, revoked_at__isnull=True)


def _remember(records: Iterable[ApiKey]) -> dict[str, Caller]:
    found = {record.digest: _caller(record) for record in records}
    if len(_cache) + len(found) > CACHE_SIZE:
        _cache.clear()
    until = time.monotonic() + ojs_settings.API_KEY_CACHE.total_seconds()
    _cache.update({fingerprint: (until, caller) for fingerprint, caller in found.items()})
    return found


def _caller(record: ApiKey) -> Caller:
    return Caller(
        name=record.name,
        scopes=frozenset(record.scopes),
        worker_id=record.worker_id,
        label=record.label,
        project=record.project,
    )


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>`; without one only where `ALLOW_ANONYMOUS` says so."""

    def authenticate(self, request: Any) -> tuple[Caller, None]:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if header:
            scheme, _, key = header.partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                raise NotAuthenticated("The Authorization header must be 'Bearer <API key>'.")
            return caller_of(key.strip()), None
        if ojs_settings.ALLOW_ANONYMOUS:
            return ANYBODY, None
        raise NotAuthenticated("An API key is required.")

    def authenticate_header(self, request: Any) -> str:
        return 'Bearer realm="ojs"'
