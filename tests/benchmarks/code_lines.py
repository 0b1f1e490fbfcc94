"""How many lines of code a file or a definition in it has: without comments and docstrings."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable

from .servers import ROOT

SILENT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
ASIDE = ("--", "\\")
"""In SQL files: comments, and what only psql reads."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def lines_of(parts: Iterable[str | int]) -> int:
    """Count the lines of parts, none of them twice.

    Args:
        parts: files, definitions in them (`file.py:Class.method`), and numbers of further lines.

    Raises:
        LookupError: there is no such definition.
    """
    further = 0
    found: set[tuple[str, int]] = set()
    for part in parts:
        if isinstance(part, int):
            further += part
            continue
        file, _, name = part.partition(":")
        found |= {(file, line) for line in _lines(file, name)}
    return len(found) + further


def _lines(file: str, name: str) -> set[int]:
    text = (ROOT / file).read_text()
    if file.endswith(".sql"):
        lines = enumerate(text.splitlines())
        return {number for number, line in lines if line.strip() and not line.startswith(ASIDE)}
    tree = ast.parse(text)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return found & _span(tree, name) if name else found


def _span(tree: ast.Module, name: str) -> set[int]:
    inside: ast.AST = tree
    for word in name.split("."):
        among = (node for node in ast.iter_child_nodes(inside) if isinstance(node, Definition))
        inside = next((node for node in among if node.name == word), tree)
        if inside is tree:
            raise LookupError(name)
    assert isinstance(inside, Definition)
    first = min([inside.lineno, *(each.lineno for each in inside.decorator_list)])
    return set(range(first, (inside.end_lineno or 0) + 1))
