"""Handlers of the shop. They leave marks in the folder SHOP_FOLDER, where tests find them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection, transaction

import jobs
from workers.runtime import Discard, Retry, Snooze, handler

PAUSE = 0.02


def folder() -> Path:
    return Path(os.environ["SHOP_FOLDER"])


def mark(name: str, text: str = "") -> None:
    """Leave a mark, atomically."""
    draft = folder() / f".{name}"
    draft.write_text(text)
    draft.rename(folder() / name)


def marked(name: str) -> bool:
    return (folder() / name).exists()


def wait_for(name: str) -> None:
    """Loop until the test leaves a mark; a Python thread can be interrupted in each iteration."""
    while not marked(name):
        time.sleep(PAUSE)


@handler("shop.noop")
def noop(context: Any, *args: Any) -> None:
    pass


@handler("shop.echo")
def echo(context: Any, *args: Any) -> dict[str, Any]:
    return {"args": list(args), "meta": context.meta, "attempt": context.attempt}


@handler("shop.versioned", versions=">=2.0 <3.0")
def versioned(context: Any, *args: Any) -> Any:
    return context.version


@handler("shop.work")
def work(context: Any, name: str) -> str:
    """Mark its start, end on request, and report whether the job was still wanted then."""
    mark(f"{name}.began", str(context.attempt))
    wait_for(f"{name}.go")
    mark(f"{name}.ended", context.cancelled_because)
    return name


@handler("shop.resume")
def resume(context: Any, name: str) -> list[Any]:
    """Save its progress, crash once, and continue from there."""
    before = [context.has_checkpoint, context.last_checkpoint]
    context.checkpoint({"done": 1 if context.last_checkpoint is None else 2})
    if context.attempt == 1:
        raise Retry(0, "crashed half way")
    return [*before, context.last_checkpoint]


@handler("shop.deliver")
def deliver(context: Any, name: str) -> Any:
    """Consist of two steps, of which the second fails at first."""

    def send() -> str:
        mark(f"{name}.sent", str(context.attempt))
        if context.attempt == 1:
            raise Retry(0, "no connection")
        return "sent"

    child = context.step("enqueue", lambda: str(jobs.enqueue("shop.noop", [1]).id))
    return [child, context.step("send", send)]


@handler("shop.pay")
def pay(context: Any, card: str) -> Any:
    """Quote the argument wherever a handler leaves what is encoded with it, and fail once."""
    held = context.step("hold", lambda: {"card": card})
    context.checkpoint({"held": card})
    context.log("Paying.")
    if context.attempt == 1:
        raise ConnectionError(f"{card} was declined")
    return {"paid with": held["card"]}


@handler("shop.resume_on_cue")
def resume_on_cue(context: Any, name: str) -> None:
    """Save a checkpoint that may come too late."""
    mark(f"{name}.began")
    wait_for(f"{name}.go")
    try:
        context.checkpoint({"late": True})
    finally:
        mark(f"{name}.ended", context.cancelled_because)


@handler("shop.wait_in_thread")
async def wait_in_thread(context: Any, name: str) -> None:
    mark(f"{name}.began")
    await asyncio.to_thread(wait_for, f"{name}.go")


@handler("shop.work_async")
async def work_async(context: Any, name: str) -> str:
    mark(f"{name}.began")
    try:
        while not marked(f"{name}.go"):
            await asyncio.sleep(PAUSE)
    except asyncio.CancelledError:
        mark(f"{name}.cancelled", context.cancelled_because)
        raise
    return name


@handler("shop.patient")
def patient(context: Any, name: str) -> None:
    """End when cancelled, and report why."""
    mark(f"{name}.began")
    while not context.wait(PAUSE) and not marked(f"{name}.go"):
        pass
    mark(f"{name}.ended", context.cancelled_because)


@handler("shop.scarce", concurrency=2)
def scarce(context: Any, name: str) -> None:
    mark(f"{name}.began")
    wait_for(f"{name}.go")


@handler("shop.hurried", timeout=0.3)
def hurried(context: Any, name: str) -> None:
    try:
        wait_for("never")
    finally:
        mark(f"{name}.ended", context.cancelled_because)


@handler("shop.hurried_async", timeout=0.3)
async def hurried_async(context: Any, name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        mark(f"{name}.ended", context.cancelled_because)


@handler("shop.beat")
def beat(context: Any, name: str) -> None:
    """Ask until the answer is no, or until the test has seen enough."""
    mark(f"{name}.began")
    still_ours = context.heartbeat()
    while still_ours and not marked(f"{name}.go"):
        time.sleep(PAUSE)
        still_ours = context.heartbeat()
    mark(f"{name}.still_ours", str(still_ours))


@handler("shop.fail")
def fail(context: Any, how: str) -> Any:
    if how == "retry":
        raise Retry(3600, "busy")
    if how == "discard":
        raise Discard("pointless")
    if how == "dead_letter":
        raise Discard("look at it", dead_letter=True)
    if how == "snooze":
        raise Snooze(3600)
    if how == "exit":
        raise SystemExit(3)
    if how == "unjson":
        return object()
    if how == "large":
        return "x" * 2**21
    if how == "illegible":
        raise FileNotFoundError("a\0b \udcff" + "x" * 2**15)
    if how == "mute":
        raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})()
    if how == "rude":
        raise type("Rude", (Exception,), {"__str__": lambda self: sys.exit(3)})()
    if how == "for ever":
        raise Snooze(10**12)
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "just now":
        raise Retry(-60)
    raise ConnectionError(f"no route: {how}")


@handler("shop.fail_async")
async def fail_async(context: Any, how: str) -> Any:
    return fail(context, how)


@handler("shop.charge", atomic_ack=True)
def charge(context: Any, name: str, how: str = "") -> str:
    """Its effect is a row; it happens exactly once."""
    Group.objects.create(name=name)
    if how == "fail":
        raise ConnectionError("no route")
    if how == "wait":
        mark(f"{name}.began")
        wait_for(f"{name}.go")
    if how == "die" and context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@handler("shop.effect", atomic_ack=True)
def effect(context: Any, seconds: float) -> None:
    """Its effects can be counted: the table has no constraint against a second one."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_effect VALUES (%s, %s)", [context.id, context.attempt])
    time.sleep(seconds)


@handler("shop.advance")
def advance(context: Any, name: str) -> None:
    """Report its progress a hundred times in a row."""
    for page in range(1, 101):
        context.progress(page / 100, f"page {page} of a\udcff", {"pages": 100})
    mark(f"{name}.reported")
    wait_for(f"{name}.go")


@handler("shop.advance_until_lost")
def advance_until_lost(context: Any, name: str) -> None:
    """Report its progress until the test ends it."""
    mark(f"{name}.began")
    while not context.wait(PAUSE):
        context.progress(0.5)
    mark(f"{name}.ended", context.cancelled_because)


@handler("shop.hold")
def hold(context: Any, name: str) -> None:
    """Hold the interpreter's lock, as C code may: no other thread runs meanwhile."""
    mark(f"{name}.began")
    ctypes.PyDLL(None).usleep(800_000)
    mark(f"{name}.ended", context.cancelled_because)


@handler("shop.parents")
def parents(context: Any) -> Any:
    return context.parent_results


@handler("shop.when")
def when(context: Any) -> float:
    """Record the time at which the handler runs."""
    return time.time()


@handler("shop.nap")
def nap(context: Any, seconds: float) -> None:
    time.sleep(seconds)


@handler("shop.die")
def die(context: Any, name: str) -> None:
    """Crash the process, once."""
    if not marked(f"{name}.died"):
        mark(f"{name}.died", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    mark(f"{name}.ended", str(os.getpid()))


@handler("shop.grow")
def grow(context: Any, name: str, megabytes: int) -> None:
    mark(f"{name}.began", str(os.getpid()))
    kept.append(bytearray(os.urandom(1024) * 1024 * megabytes))


kept: list[bytearray] = []


@handler("shop.connections")
def connections_left(context: Any) -> Any:
    """Which of this database's connections the previous job left in a transaction."""
    return [connection.in_atomic_block, connection.get_autocommit()]


@handler("shop.leave_transaction_open")
def leave_transaction_open(context: Any) -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name="never committed")


@handler("shop.spin")
def spin(context: Any, name: str) -> None:
    """Keep the interpreter busy, without a pause."""
    mark(f"{name}.began")
    while not marked(f"{name}.go"):
        sum(number * number for number in range(10_000))
