"""What every page of ours must say at its top while it is true: "the reaper has not run for 40 s".

Whoever has something to say adds a function with `notice`; it is asked on each page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.http import HttpRequest

Source = Callable[[HttpRequest], str | None]

_sources: list[Source] = []


def notice(source: Source) -> Source:
    """Ask `source` on each page; what it returns, if anything, is shown there."""
    _sources.append(source)
    return source


def notices(request: HttpRequest) -> Iterator[str]:
    for source in _sources:
        text = source(request)
        if text:
            yield text
