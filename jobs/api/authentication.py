"""Bearer keys → who asks, and what they may do (OJS HTTP §5)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rest_framework.authentication import BaseAuthentication

from .. import clock
from ..conf import ojs_settings
from ..errors import NotAuthenticated, PermissionDenied
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

    def may(self, scope: str, *, reads: bool = False) -> bool:
        return scope in self.scopes or Scope(scope).is_opened_by(self.scopes, reads=reads)

    def require(self, scope: str, *, reads: bool = False) -> None:
        """
        Raises:
            PermissionDenied: the key was not made for this.
        """
        if not self.may(scope, reads=reads):
            raise PermissionDenied(
                f"This API key may not do that: it needs the scope '{scope}'.", scope=scope
            )

    def require_no_project(self) -> None:
        """
        Raises:
            PermissionDenied: the key belongs to a project, and this concerns all of them.
        """
        if self.project:
            raise PermissionDenied(
                "This API key belongs to a project, and this concerns all of them.",
                project=self.project,
            )


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
        NotAuthenticated: nobody's, or a revoked one.
    """
    fingerprint = digest(key)
    remembered = _cache.get(fingerprint)
    if remembered is not None and remembered[0] > time.monotonic():
        return remembered[1]
    record = ApiKey.objects.filter(digest=fingerprint, revoked_at__isnull=True).first()
    # Found by its hash already; compared once more in a time that tells nothing.
    if record is None or not hmac.compare_digest(record.digest, fingerprint):
        _cache.pop(fingerprint, None)
        raise NotAuthenticated("This API key is unknown or revoked.")
    now = clock.now()
    if record.last_used_at is None or now - record.last_used_at >= USED_EVERY:
        ApiKey.objects.filter(pk=record.pk).update(last_used_at=now)
    caller = Caller(
        name=record.name,
        scopes=frozenset(record.scopes),
        worker_id=record.worker_id,
        label=record.label,
        project=record.project,
    )
    if len(_cache) >= CACHE_SIZE:
        _cache.clear()
    _cache[fingerprint] = (time.monotonic() + ojs_settings.API_KEY_CACHE.total_seconds(), caller)
    return caller


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
