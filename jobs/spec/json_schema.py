"""JSON Schema 2020-12 of a job's arguments: which schemas are accepted, and what they find wrong.

A schema comes from a client and is evaluated for every job of its type, so only those are accepted
whose evaluation takes time in proportion to the arguments: nothing is fetched, references stay
within the document and do not recurse, and regular expressions are run by an engine that does not
backtrack. The library is jsonschema-rs, the extra `schemas`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from ..errors import InvalidSchema, NotInstalled
from .encoded import are_encoded
from .fields import json_name

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MOST_BYTES = 64 * 1024
DEEPEST = 50
"""Levels of objects and arrays in a schema."""
MOST_PARTS = 2_000
"""Subschemas, each counted wherever a reference leads to it."""
MOST_PATTERNS = 100
PATTERN_SIZE = 256 * 1024
"""Bytes of a compiled regular expression."""
MOST_MISTAKES = 20
"""Mistakes of one job that are reported."""
MOST_WORK = 20_000
"""Parts of the schema times values of the arguments. Beyond that only the first mistake is searched
for, or none: the library makes an error of a kilobyte for each pair that does not match, and keeps
all those of the alternatives of an `anyOf`."""
CACHED = 500
"""Compiled schemas that a process keeps."""

ONE = frozenset(
    {
        *("not", "if", "then", "else", "items", "contains", "propertyNames", "contentSchema"),
        *("additionalProperties", "unevaluatedItems", "unevaluatedProperties"),
    }
)
MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose value is a schema, a list of schemas, or schemas by name."""
OF_OBJECTS = frozenset(
    {
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties", "propertyNames", "dependentRequired"),
    }
)
OF_ARRAYS = frozenset(
    {"prefixItems", "items", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"}
)

Schema = Any
"""A dictionary or a boolean."""


class Mistake(NamedTuple):
    """Why arguments do not match. It contains no value of theirs, which may be a secret."""

    pointer: str
    """JSON pointer into the job: `/args/0/amount`."""
    keyword: str
    message: str

    def __str__(self) -> str:
        return f"{self.pointer}: {self.message}"


def is_installed() -> bool:
    return find_spec("jsonschema_rs") is not None


def is_as_before(schema: Schema) -> bool:
    """Whether it may be in the notation of before 2020-12: it does not name its dialect."""
    return isinstance(schema, dict) and "$schema" not in schema


def modern(schema: Schema) -> Schema:
    """Return the schema with `items` as a list, of before 2020-12, written as `prefixItems`."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for keyword, value in schema.items():
        if keyword in ONE and not isinstance(value, list):
            found[keyword] = modern(value)
        elif keyword in MANY and isinstance(value, list):
            found[keyword] = [modern(each) for each in value]
        elif keyword in NAMED and isinstance(value, dict):
            found[keyword] = {name: modern(each) for name, each in value.items()}
    if isinstance(schema.get("items"), list):
        del found["items"]
        found["prefixItems"] = [modern(each) for each in schema["items"]]
        if "additionalItems" in found:
            found["items"] = modern(found.pop("additionalItems"))
    return found


def check_schema(schema: Schema, *, as_before: bool = False) -> None:
    """Refuse what is no JSON Schema 2020-12, or more than this server evaluates for each job.

    Args:
        as_before: accept `items` as a list in a schema that does not name its dialect.

    Raises:
        InvalidSchema: `details["schema_error"]` and `details["pointer"]` say what and where.
        NotInstalled: the extra `schemas` is not installed.
    """
    if not isinstance(schema, dict):
        raise refuse("", f"A schema must be an object, not {json_name(schema)}.")
    if _depth(schema) > DEEPEST:
        raise refuse("", f"It is nested more than {DEEPEST} levels deep.")
    if len(orjson.dumps(schema)) > MOST_BYTES:
        raise refuse("", f"A schema may have at most {MOST_BYTES} bytes.", limit=MOST_BYTES)
    if str(schema.get("$schema", DIALECT)).rstrip("#") != DIALECT:
        raise refuse("/$schema", "$schema must reference draft 2020-12.")
    if as_before and is_as_before(schema):
        schema = modern(schema)
    validators = _library()
    try:
        validators.meta.validate(schema)
    except (validators.ValidationError, validators.ReferencingError) as problem:
        pointer = pointer_of(getattr(problem, "instance_path", ()))
        raise refuse(pointer, str(problem.message)[:500]) from None
    _Budget(schema).check()
    try:
        _compile(schema)
    except (ValueError, validators.ReferencingError) as problem:
        message = str(getattr(problem, "message", problem))[:500]
        raise refuse(
            pointer_of(getattr(problem, "instance_path", ())),
            message,
            hint="Regular expressions have neither look-around nor back-references here.",
        ) from None


def refuse(pointer: str, message: str, *, hint: str = "", **details: Any) -> InvalidSchema:
    place = f" (at {pointer})" if pointer else ""
    return InvalidSchema(
        f"The provided JSON Schema is not valid draft 2020-12, or not supported: {message}{place}",
        hint=hint,
        field="schema",
        schema_error=message,
        pointer=pointer,
        **details,
    )


def resolve(root: Schema, reference: str) -> Schema:
    """Return the part of the document that a `$ref` such as `#/$defs/order` names.

    Raises:
        LookupError: it is elsewhere, or there is nothing.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise LookupError(reference)
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) and name.isdigit() else found[name]
    if not isinstance(found, dict | bool):
        raise LookupError(reference)
    return found


def subschemas(schema: Schema) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    """Yield the schemas directly inside of one, with their places."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in ONE:
            yield (keyword,), value
        elif keyword in MANY and isinstance(value, list):
            yield from (((keyword, index), each) for index, each in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            yield from (((keyword, name), each) for name, each in value.items())


class _Budget:
    """Counts the parts of a schema as often as they are evaluated, and refuses too many."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.known = {id(root)}
        """Identities of the objects that are schemas: a reference may lead nowhere else."""
        self._learn(root)
        self.weights: dict[str, int] = {}
        """By reference."""
        self.entered: list[str] = []
        self.patterns = 0

    def check(self) -> int:
        """Return the number of parts."""
        return self._weigh(self.root, ())

    def _learn(self, schema: Schema) -> None:
        for _, each in subschemas(schema):
            self.known.add(id(each))
            self._learn(each)

    def _weigh(self, schema: Schema, place: tuple[str | int, ...]) -> int:
        if not isinstance(schema, dict):
            return 1
        if len(place) > 2 * DEEPEST:
            raise refuse(
                pointer_of(place), f"It is nested more than {DEEPEST} levels deep by references."
            )
        self._refuse_unsupported(schema, place)
        weight = 1
        for inside, each in subschemas(schema):
            weight += self._weigh(each, (*place, *inside))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            weight += self._weigh_reference(reference, place)
        if weight > MOST_PARTS:
            raise refuse(pointer_of(place), f"It has more than {MOST_PARTS} parts.")
        return weight

    def _weigh_reference(self, reference: str, place: tuple[str | int, ...]) -> int:
        pointer = pointer_of((*place, "$ref"))
        if reference in self.entered:
            raise refuse(pointer, f"The reference '{reference[:200]}' leads back to itself.")
        if reference not in self.weights:
            try:
                target = resolve(self.root, reference)
                if isinstance(target, dict) and id(target) not in self.known:
                    raise LookupError(reference)
            except (LookupError, TypeError, ValueError):
                raise refuse(
                    pointer,
                    f"'$ref' must be the place of a schema in this document, such as "
                    f"'#/$defs/order', not '{reference[:200]}'; nothing is fetched.",
                ) from None
            self.entered.append(reference)
            self.weights[reference] = self._weigh(target, (*place, "$ref"))
            self.entered.pop()
        return self.weights[reference]

    def _refuse_unsupported(self, schema: dict[str, Any], place: tuple[str | int, ...]) -> None:
        for name in ("$dynamicRef", "$recursiveRef"):
            if name in schema:
                raise refuse(pointer_of((*place, name)), f"'{name}' is not supported.")
        if place:
            for name in ("$schema", "$id"):
                if name in schema:
                    raise refuse(
                        pointer_of((*place, name)), f"'{name}' may only be at the top of a schema."
                    )
        self.patterns += ("pattern" in schema) + len(schema.get("patternProperties") or ())
        if self.patterns > MOST_PATTERNS:
            raise refuse(
                pointer_of(place), f"It has more than {MOST_PATTERNS} regular expressions."
            )


def _depth(value: Any) -> int:
    deepest, layer = 0, [value]
    while layer and deepest <= DEEPEST:
        deepest += 1
        layer = [
            inner
            for each in layer
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
    return deepest


def _library() -> Any:
    try:
        import jsonschema_rs
    except ImportError:
        raise NotInstalled(
            "This server cannot validate arguments: the extra 'schemas' is not installed.",
            hint="pip install 'django-ojs[schemas]'",
        ) from None
    return jsonschema_rs


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"Nothing is fetched: {uri[:200]}")


def _compile(schema: Schema) -> Any:
    library = _library()
    return library.Draft202012Validator(
        schema,
        validate_formats=True,
        retriever=_fetch_nothing,
        # Its messages then contain no values.
        mask="…",
        # Linear in the length of the text, whatever the expression.
        pattern_options=library.RegexOptions(size_limit=PATTERN_SIZE, dfa_size_limit=PATTERN_SIZE),
    )


class ArgumentsSchema:
    """A compiled schema.

    `args` is an array (OJS core §5.1), while the examples of the registry send an object. So a
    schema that describes an object is about the only argument.
    """

    def __init__(self, schema: Schema) -> None:
        schema = modern(schema) if is_as_before(schema) else schema
        self.is_of_one = describes_object(schema)
        self._validator = _compile(schema)
        self._parts = _Budget(schema).check()
        text = orjson.dumps(schema)
        self._has_alternatives = b'"anyOf"' in text or b'"oneOf"' in text
        self._is_valid = self._validator.is_valid

    def accepts(self, args: list[Any]) -> bool:
        if are_encoded(args):
            # Only the producer, which has the key, can check them (OJS encryption §4).
            return True
        if not self.is_of_one:
            return bool(self._is_valid(args))
        return len(args) == 1 and bool(self._is_valid(args[0]))

    def refused(self, lists: Iterable[list[Any]]) -> list[int]:
        """Return the places of the lists of arguments that do not match."""
        is_valid = self._is_valid
        if self.is_of_one:
            return [
                place
                for place, args in enumerate(lists)
                if (len(args) != 1 or not is_valid(args[0])) and not are_encoded(args)
            ]
        return [
            place
            for place, args in enumerate(lists)
            if not is_valid(args) and not are_encoded(args)
        ]

    def mistakes(self, args: list[Any], *, brief: bool = False) -> list[Mistake]:
        """Return what is wrong with the arguments; `MOST_MISTAKES` at most.

        Args:
            brief: one mistake will do.
        """
        instance: Any = args
        before: tuple[str | int, ...] = ("args",)
        if self.is_of_one:
            if len(args) != 1:
                expected = f"one argument, an object, is expected, got {len(args)}"
                return [Mistake("/args", "type", expected)]
            instance, before = args[0], ("args", 0)
        text = orjson.dumps(args)
        if brief or self._parts * (text.count(b",") + text.count(b"[") + 1) > MOST_WORK:
            if self._has_alternatives:
                if self._is_valid(instance):
                    return []
                return [Mistake("/args", "schema", "the arguments do not match")]
            try:
                self._validator.validate(instance)
            except ValueError as first:
                return [_mistake(first, before)]
            return []
        found: list[Mistake] = []
        for problem in self._validator.iter_errors(instance):
            found.append(_mistake(problem, before))
            if len(found) == MOST_MISTAKES:
                break
        return found


def compiled(schema: Schema) -> ArgumentsSchema:
    """Return the compiled schema, from a cache if one with this content was compiled before.

    Raises:
        ValueError: it cannot be compiled; `check_schema` would have refused it.
        NotInstalled: the extra `schemas` is not installed.
    """
    return _compiled(orjson.dumps(schema))


@lru_cache(CACHED)
def _compiled(text: bytes) -> ArgumentsSchema:
    return ArgumentsSchema(orjson.loads(text))


def describes_object(schema: Schema) -> bool:
    """Whether it is about an object rather than an array of arguments."""
    top = schema
    for _ in range(DEEPEST):
        if not isinstance(top, dict) or "type" in top or "$ref" not in top:
            break
        try:
            top = resolve(schema, top["$ref"])
        except (LookupError, TypeError, ValueError):
            return False
    if not isinstance(top, dict):
        return False
    if "type" in top:
        return top["type"] in ("object", ["object"])
    return not OF_OBJECTS.isdisjoint(top) and OF_ARRAYS.isdisjoint(top)


def pointer_of(path: Iterable[str | int]) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _mistake(problem: Any, before: tuple[str | int, ...]) -> Mistake:
    path = [*before, *problem.instance_path]
    keyword = problem.kind.name
    return Mistake(pointer_of(path)[:500], keyword, _words(problem, path)[:500])


def _words(problem: Any, path: list[str | int]) -> str:
    """Describe a mistake as OJS schema registry §7.3 does, without values of the arguments."""
    place = path[-1]
    subject = f"property '{place:.64}'" if isinstance(place, str) else f"item {place}"
    if len(path) == 1:
        subject = "the list of arguments"
    kinds = _library().ValidationErrorKind
    match problem.kind:
        case kinds.Required(property=name):
            return f"required property '{name.strip(QUOTE):.64}' is missing"
        case kinds.Type(types=types):
            return f"{subject} must be {' or '.join(types)}, got {json_name(problem.instance)}"
        case kinds.Format(format=name):
            return f"{subject} does not match format '{name}'"
        case (
            kinds.AdditionalProperties(unexpected=names)
            | kinds.UnevaluatedProperties(unexpected=names)
        ):
            return f"{subject} has members that are not allowed: {_listed(names)}"
        case kinds.Enum() | kinds.Constant():
            return f"{subject} is not one of the allowed values"
        case kinds.Minimum(limit=limit) | kinds.ExclusiveMinimum(limit=limit):
            than = "more than" if problem.kind.name.startswith("exclusive") else "at least"
            return f"{subject} must be {than} {limit}"
        case kinds.Maximum(limit=limit) | kinds.ExclusiveMaximum(limit=limit):
            than = "less than" if problem.kind.name.startswith("exclusive") else "at most"
            return f"{subject} must be {than} {limit}"
        case kinds.MinLength(limit=limit):
            return f"{subject} must have at least {limit} characters"
        case kinds.MaxLength(limit=limit):
            return f"{subject} may have at most {limit} characters"
        case kinds.MinItems(limit=limit):
            return f"{subject} must have at least {limit} items"
        case kinds.MaxItems(limit=limit) | kinds.AdditionalItems(limit=limit):
            return f"{subject} may have at most {limit} items"
        case kinds.Pattern(pattern=pattern):
            return f"{subject} does not match the pattern {pattern:.200}"
        case kinds.AnyOf() | kinds.OneOfNotValid():
            return f"{subject} matches none of the alternatives"
        case kinds.OneOfMultipleValid():
            return f"{subject} matches more than one of the alternatives"
        case kinds.FalseSchema():
            return f"{subject} is not allowed"
    return f"{subject} does not satisfy '{problem.kind.name}'"


QUOTE = '"'


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"'{name:.64}'" for name in names[:5])
    return shown + (", …" if len(names) > 5 else "")
