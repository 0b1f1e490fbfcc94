"""Access to a quickstart: an account for the admin, and the key of the demonstration."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model

from jobs.http.authentication import make_key
from jobs.models import ApiKey, Scope


@dataclass(frozen=True)
class Operator:
    username: str
    password: str | None = None
    """Set only if it was generated: it is known nowhere else."""
    is_new: bool = True


def ensure_operator(environ: Mapping[str, str]) -> Operator:
    """Return an account for the admin; create one if there is none, and never change one."""
    model: Any = get_user_model()
    accounts = model._default_manager
    named = environ.get("DJANGO_SUPERUSER_USERNAME")
    if named:
        known = accounts.filter(**{model.USERNAME_FIELD: named})
    else:
        known = accounts.filter(is_superuser=True, is_active=True)
    account = known.order_by("pk").first()
    if account is not None:
        return Operator(account.get_username(), is_new=False)
    given = environ.get("DJANGO_SUPERUSER_PASSWORD")
    password = given or secrets.token_urlsafe(12)
    account = accounts.create_superuser(
        **{model.USERNAME_FIELD: named or "admin"}, email="", password=password
    )
    return Operator(account.get_username(), None if given else password)


def make_demonstration_key(name: str) -> str:
    """Create a key for the demonstration; delete one that an earlier run left behind."""
    remove_demonstration_key(name)
    _, key = make_key(name, scopes=[Scope.PRODUCE, Scope.WORK])
    return key


def remove_demonstration_key(name: str) -> None:
    ApiKey.objects.filter(name=name).delete()
