"""Encryption and compression of arguments, results and errors (OJS encryption).

    OJS = {
        "ENQUEUE_MIDDLEWARE": [..., "jobs.codecs.Encode"],
        "EXECUTION_MIDDLEWARE": ["jobs.codecs.Decode", ...],
        "CODEC_KEYS": "shop.keys.codec_keys",
    }

`Encode` comes last, so that all other middleware sees clear arguments, and none stores them;
`Decode` comes before everything that reads them. What is encoded never reaches the database in
clear. Handlers, and handles of this site (`JobHandle.args`, `JobHandle.result`), get it in clear.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from .engine import Failure, bounds, schemas
from .errors import InvalidRequest
from .middleware import ENQUEUE, EXECUTION, Middleware, enqueue_chain, execution_chain
from .payloads import keys
from .payloads.chain import (
    chain,
    encodings_of,
    kinds,
    like,
    open_all,
    open_args,
    opened,
    seal_args,
    sealed,
    secret,
)
from .payloads.codecs import Codec, CodecError, Encryption, Gzip, Payload
from .payloads.external import PayloadChecksumMismatch
from .payloads.keys import of_environment
from .place import current
from .producer import checked
from .spec.encoded import are_encoded, is_encoded
from .spec.jsonable import jsonable

logger = logging.getLogger("jobs.codecs")

__all__ = [
    "Codec",
    "CodecError",
    "Decode",
    "Encode",
    "Encryption",
    "Gzip",
    "Payload",
    "PayloadChecksumMismatch",
    "of_environment",
]

HIDDEN = "[encrypted]"
"""Stands for what must not be read (extension interactions §5.2)."""


class Encode:
    """For `ENQUEUE_MIDDLEWARE`, last: encodes the arguments of a job.

    The job is checked first, by the rules of every enqueue and by the schema of its type, and the
    key of its unique policy is computed from its clear arguments (§15.3). A subclass may choose:

        class EncodePayments(Encode):
            def wants(self, job):
                return job["type"].startswith("payment.")
    """

    meta: tuple[str, ...] = ("ojs.kwargs",)
    """Members of `meta` that are encoded as well: here the keyword arguments of Django tasks."""

    def wants(self, job: dict[str, Any]) -> bool:
        """Whether this job is encoded."""
        return True

    for_option = ENQUEUE

    def __call__(self, job: dict[str, Any], next: Callable[[dict[str, Any]], Any]) -> Any:
        if self.wants(job) and not are_encoded(job["args"]):
            self.encode(job)
        return next(job)

    def encode(self, job: dict[str, Any]) -> None:
        """
        Raises:
            InvalidRequest: it would be refused in clear.
        """
        place = current()
        new = checked(job, place.now())
        with place.inside():
            schemas.checked([new], lenient=bounds.are_accepted())
        args, named = seal_args(new.args)
        hidden = {name: sealed(new.meta[name]) for name in self.meta if name in new.meta}
        job["args"] = args
        job["meta"] = {**job["meta"], **hidden, **named}
        if new.unique is not None:
            job["unique"] = {**job["unique"], "digest": new.unique.key}


class Decode:
    """For `EXECUTION_MIDDLEWARE`, before all that reads arguments: decodes them.

    The result, the checkpoints and the errors of a job whose arguments were encrypted are encoded,
    too; the type and the code of an error stay readable, for the retry policy.
    """

    for_option = EXECUTION

    def __call__(self, context: Any, next: Callable[[], Any]) -> Any:
        vault = _vault_of(context)
        context.args = open_args(context.args, context.meta)
        context.meta = {name: opened(value) for name, value in context.meta.items()}
        _open_document(context)
        if is_encoded(context.last_checkpoint):
            context.restore(opened(context.last_checkpoint))
        if vault is None:
            return next()
        context.vault = vault
        return vault.result(next())


def _vault_of(context: Any) -> Vault | None:
    """Return what encodes the rest, if the arguments are secret and not only compressed."""
    if not are_encoded(context.args):
        return None
    encodings = encodings_of(context.args[0], context.meta)
    return Vault(like(encodings)) if secret(encodings) else None


def _open_document(context: Any) -> None:
    """Let `context.job` and `context.parent_results` show what was decoded."""
    read = context.document

    def document() -> dict[str, Any]:
        found = {**read(), "args": context.args, "meta": context.meta}
        if found.get("parent_results"):
            found["parent_results"] = open_all(found["parent_results"])
        return found

    context.document = document


class Vault:
    """Encodes what an execution writes."""

    def __init__(self, chain: Sequence[Codec]) -> None:
        self._chain = chain

    def seal(self, value: Any) -> Any:
        return sealed(value, self._chain)

    def result(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self.seal(jsonable(value, "result"))
        except InvalidRequest:
            # It is refused where results are checked.
            return value

    def conceal(self, failure: Failure) -> Failure:
        """Encode what may quote the arguments; the codec server decodes `details`."""
        if not (failure.message or failure.backtrace or failure.details):
            return failure
        inside: dict[str, Any] = {"message": failure.message, "backtrace": failure.backtrace}
        inside |= {"details": failure.details} if failure.details else {}
        failure.message, failure.backtrace, failure.details = HIDDEN, None, None
        try:
            failure.details = self.seal(inside)
        except Exception as problem:
            # Without the keys the text is lost: an attempt must be reported all the same. A
            # traceback would begin with the error that is to be hidden.
            name = type(problem).__name__
            logger.error("The error of job %s could not be encoded: %s", failure.job_id, name)
        return failure


def misplaced() -> list[str]:
    """Return what is wrong with the places of `Encode` and `Decode` in their chains."""
    found = []
    encoders, decoders = _places()
    if True in encoders[:-1]:
        found.append('Encode must be the last of OJS["ENQUEUE_MIDDLEWARE"].')
    if True in encoders and True not in decoders:
        found.append('With Encode, OJS["EXECUTION_MIDDLEWARE"] needs jobs.codecs.Decode.')
    return found


def unusable() -> list[str]:
    """Return what keeps the codecs and the keys of this process from working."""
    # A process that only has the settings in common with others need not have the packages.
    is_used = any(map(any, _places()))
    found = []
    for check in (chain if is_used else kinds, keys.check):
        try:
            check()
        except ImproperlyConfigured as problem:
            found.append(str(problem))
    return found


def _places() -> tuple[list[bool], list[bool]]:
    """Return which of the middleware around enqueues encode, and around executions decode."""
    return (
        [_is(each, enqueue_chain.load, Encode) for each in enqueue_chain.entries],
        [_is(each, execution_chain.load, Decode) for each in execution_chain.entries],
    )


def _is(entry: str | Middleware, load: Callable[[Any], Any], kind: type[Any]) -> bool:
    return isinstance(load(entry), kind)
