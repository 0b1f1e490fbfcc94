"""Options of commands that take several words: `--queues a,b`, or `--queues a --queues b`."""

from __future__ import annotations

import argparse
from typing import Any


def words(text: str) -> list[str]:
    """Return the words of a list separated by commas, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


class Words(argparse.Action):
    """Stores a list of words. An option that is given again adds to it."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        stored = getattr(namespace, self.dest)
        given = [] if stored is self.default else stored
        setattr(namespace, self.dest, list(dict.fromkeys([*given, *words(values)])))
