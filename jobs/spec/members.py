"""Declarations of request members, which the validator reads and the OpenAPI document describes.

    class Options(Members):
        queue = Text(pattern=QUEUE_PATTERN, longest=128).default("default")
        priority = Integer(least=-100, most=100).default(0)

    Options.priority.read(document)     # an integer in range, or a refusal that names the place
    Options.json_schema()               # JSON Schema of the whole

Nothing is converted: a number where a string belongs is refused (OJS JSON format §12.4). `null`
counts as absent (§14.2).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar, cast
from uuid import UUID

from .durations import LONGEST, SPAN, format_duration, parse_duration, parse_span
from .fields import Document, empty, missing, refuse, wrong_type
from .identifiers import parse_uuid
from .timestamps import parse_when

T = TypeVar("T")
V = TypeVar("V")
Schema = dict[str, Any]
"""JSON Schema, in the dialect of OpenAPI 3.1."""

LARGEST = 2**53 - 1
"""The largest integer that every JSON parser preserves (OJS JSON format §13)."""
CENTURY = int(LONGEST.total_seconds())
MILLISECOND = timedelta(milliseconds=1)

# Both parsers accept more than these patterns, which describe forms that are easy to write.
DURATION: Schema = {
    "type": "string",
    "description": "ISO 8601, in its simplest forms.",
    "pattern": r"^P(T[1-9][0-9]{0,5}[SMH]|[1-9][0-9]{0,3}D)$",
    "examples": ["PT5M"],
}
MOMENT: Schema = {
    "description": "An RFC 3339 timestamp with a time zone, or `+PT5S`: counted from now.",
    "anyOf": [
        {"type": "string", "format": "date-time", "examples": ["2026-12-24T18:00:00Z"]},
        {
            "type": "string",
            "pattern": r"^\+P(T[0-9]{1,6}[SMH]|[0-9]{1,4}D)$",
            "examples": ["+PT5S"],
        },
    ],
}


def seconds_schema(least: int = 0, most: int = CENTURY) -> Schema:
    """The schema of a duration in seconds or in ISO 8601."""
    return {
        "description": "Whole seconds, or an ISO 8601 duration such as `PT5M`.",
        "oneOf": [{"type": "integer", "minimum": least, "maximum": most}, DURATION],
    }


def words(*choices: str) -> dict[str, str]:
    """The choices of a `Choice` whose words stand for themselves."""
    return {choice: choice for choice in choices}


class Declared:
    """A member of a request, with its description.

    Args:
        about: a sentence for readers.
        hidden: accepted from older clients, but not described.
        nullable: `null` has a meaning of its own.
        echoed: of a job: stored as sent, and returned with it.
        schema: JSON Schema that extends or replaces what the rules yield.
        schema: JSON Schema that adds to what the rules say, or replaces it.
    """

    name = ""

    def __init__(
        self,
        about: str = "",
        *,
        hidden: bool = False,
        nullable: bool = False,
        echoed: bool = False,
        schema: Schema | None = None,
    ) -> None:
        self.about = about
        self.is_hidden = hidden
        self.is_nullable = nullable
        self.is_echoed = echoed
        self.is_required = False
        self.more = schema or {}

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the members of the document that it reads."""
        return (self.name,)

    def rules(self) -> Schema:
        """JSON Schema of its value, without description."""
        return {}

    def json_schema(self) -> Schema:
        schema = self.rules() | self.more
        if self.about:
            schema["description"] = self.about
        if not self.is_nullable:
            return schema
        if "type" in schema:
            return schema | {"type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}

    def properties(self) -> dict[str, Schema]:
        return {self.name: self.json_schema()}


class Member(Declared, Generic[T]):
    """A member that can be read; `T` is what reading it returns."""

    absent: T

    def __init__(self, about: str = "", **words: Any) -> None:
        super().__init__(about, **words)
        self.absent = cast(T, None)

    def required(self: Member[V | None]) -> Member[V]:
        """Refuse a document without it, and an empty text."""
        self.is_required = True
        return cast("Member[V]", self)

    def default(self: Member[V | None], value: V) -> Member[V]:
        """Use `value` if it is absent."""
        self.absent = value
        return cast("Member[V]", self)

    def read(self, document: Document) -> T:
        """
        Raises:
            InvalidRequest: it is invalid; `details["field"]` names it.
        """
        value = document.get(self.name)
        if value is not None:
            return self.check(value, self.name)
        if self.is_required:
            raise missing(self.name)
        return self.absent

    def under(self, document: Document, path: str) -> T:
        """Read it from a part of the request; refusals prefix their place with `path`."""
        value = document.get(self.name)
        if value is not None:
            return self.check(value, f"{path}.{self.name}")
        if self.is_required:
            raise missing(f"{path}.{self.name}")
        return self.absent

    def check(self, value: Any, place: str) -> T:
        """Return the meaning of a value that is not null.

        Args:
            place: its name in a refusal.

        Raises:
            InvalidRequest: the value is invalid.
        """
        raise NotImplementedError

    def json_schema(self) -> Schema:
        schema = super().json_schema()
        is_plain = isinstance(self.absent, str | int | float)
        if is_plain and self.absent != "" and self.absent is not False:
            # In words: tools that make clients of it require members with a `default`, or send it.
            said = f"`{json.dumps(self.absent)}` where it is absent."
            about = schema.get("description")
            schema["description"] = f"{about} {said}" if about else said
        return schema


def optional(member: Member[T]) -> Member[T | None]:
    """The same member in a document where it is optional."""
    copied = copy(member)
    copied.is_required = False
    return cast("Member[T | None]", copied)


class Anything(Member[Any]):
    """Any JSON value; if required, it must be present, and may be null."""

    def read(self, document: Document) -> Any:
        if self.is_required and self.name not in document:
            raise missing(self.name)
        return document.get(self.name)

    def check(self, value: Any, place: str) -> Any:
        return value


class Text(Member[str | None]):
    """A string.

    Args:
        longest: characters.
        pattern: must match the whole text.
        filled: refuse an empty text.
        secret: a refusal does not repeat it.
    """

    def __init__(
        self,
        about: str = "",
        *,
        longest: int = 255,
        pattern: re.Pattern[str] | None = None,
        filled: bool = False,
        secret: bool = False,
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.longest = longest
        self.pattern = pattern
        self.is_filled = filled
        self.is_secret = secret

    def read(self, document: Document) -> str | None:
        value = document.get(self.name)
        if value is None and not self.is_required:
            return self.absent
        if type(value) is str and value and len(value) <= self.longest and self.pattern is None:
            return value
        return super().read(document)

    def check(self, value: Any, place: str) -> str:
        if type(value) is not str:
            raise wrong_type(place, "string", value)
        if len(value) > self.longest:
            raise refuse(
                place,
                f"The '{place}' field may have at most {self.longest} characters, "
                f"not {len(value)}.",
                validation="max_length",
                limit=self.longest,
            )
        pattern = self.pattern
        if pattern is not None and not pattern.fullmatch(value):
            shown = "its value" if self.is_secret else repr(value)
            raise refuse(
                place,
                f"The '{place}' field must match {pattern.pattern}; {shown} does not.",
                validation="pattern",
                pattern=pattern.pattern,
            )
        if not value and (self.is_required or self.is_filled):
            raise empty(place)
        return value

    def rules(self) -> Schema:
        schema: Schema = {"type": "string", "maxLength": self.longest}
        if self.pattern is not None:
            schema["pattern"] = f"^{self.pattern.pattern}$"
        elif self.is_required or self.is_filled:
            schema["minLength"] = 1
        return schema


class Integer(Member[int | None]):
    """A whole number; both bounds are inclusive."""

    def __init__(
        self, about: str = "", *, least: int = 0, most: int = LARGEST, **words: Any
    ) -> None:
        super().__init__(about, **words)
        self.least, self.most = least, most

    def read(self, document: Document) -> int | None:
        value = document.get(self.name)
        if value is None and not self.is_required:
            return self.absent
        if type(value) is int and self.least <= value <= self.most:
            return value
        return super().read(document)

    def check(self, value: Any, place: str) -> int:
        if type(value) is not int:
            raise wrong_type(place, "integer", value)
        if not self.least <= value <= self.most:
            raise refuse(
                place,
                f"The '{place}' field must be between {self.least} and {self.most}, not {value}.",
                validation="range",
                minimum=self.least,
                maximum=self.most,
            )
        return value

    def rules(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


class Number(Member[float | None]):
    """A number; both bounds are inclusive.

    Args:
        sentence: the refusal, a template with `{name}`, `{value}`, `{least}` and `{most}`.
        typed: refuse other types with the message for a wrong type.
    """

    def __init__(
        self,
        about: str = "",
        *,
        least: float,
        most: float,
        sentence: str = "The '{name}' field must be between {least} and {most}, not {value}.",
        typed: bool = True,
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.least, self.most = least, most
        self.sentence = sentence
        self.is_typed = typed

    def check(self, value: Any, place: str) -> float:
        is_number = type(value) is float or type(value) is int
        if is_number and self.least <= value <= self.most:
            return float(value)
        if not is_number and self.is_typed:
            raise wrong_type(place, "number", value)
        message = self.sentence.format(name=place, value=value, least=self.least, most=self.most)
        raise refuse(place, message)

    def rules(self) -> Schema:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


class Boolean(Member[bool | None]):
    def check(self, value: Any, place: str) -> bool:
        if type(value) is not bool:
            raise wrong_type(place, "boolean", value)
        return value

    def rules(self) -> Schema:
        return {"type": "boolean"}


class Choice(Member[V | None], Generic[V]):
    """One of several words.

    Args:
        choices: word → its meaning.
        sentence: the refusal, a template with `{name}`, `{choices}` and `{value}`.
        details: details of the refusal.
        unsaid: choices that are not described.
    """

    def __init__(
        self,
        choices: Mapping[str, V],
        about: str = "",
        *,
        sentence: str = "The '{name}' field must be one of {choices}, not {value!r}.",
        details: Mapping[str, str] | None = None,
        unsaid: Iterable[str] = (),
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.choices = choices
        self.sentence = sentence
        self.details = details or {}
        self.unsaid = frozenset(unsaid)

    def check(self, value: Any, place: str) -> V:
        if type(value) is str and value in self.choices:
            return self.choices[value]
        (FILLED if self.is_required else TEXT).check(value, place)
        message = self.sentence.format(name=place, choices=", ".join(self.choices), value=value)
        raise refuse(place, message, **self.details)

    def rules(self) -> Schema:
        return {"type": "string", "enum": [str(c) for c in self.choices if c not in self.unsaid]}


class Object(Member[dict[str, Any] | None]):
    """An object whose members are the client's own, or are read separately.

    Args:
        of: declarations of those members.
    """

    def __init__(
        self,
        about: str = "",
        *,
        of: type[Members] | None = None,
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.of = of

    def check(self, value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong_type(place, "object", value)
        return value

    def rules(self) -> Schema:
        if self.of is not None:
            return self.of.reference()
        return {"type": "object", "additionalProperties": True}


class Listed(Member[list[V] | None], Generic[V]):
    """A list.

    Args:
        least, most: allowed length; a callable is evaluated each time, and not described.
        sentence: the refusal of a wrong length, with `{name}`, `{least}`, `{most}` and `{size}`.
        details: details of that refusal.
    """

    def __init__(
        self,
        about: str = "",
        *,
        least: int = 0,
        most: int | Callable[[], int] | None = None,
        sentence: str = "The '{name}' field must hold {least} to {most}, not {size}.",
        details: Mapping[str, Any] | None = None,
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.least, self.most = least, most
        self.sentence = sentence
        self.details = details or {}

    def check(self, value: Any, place: str) -> list[V]:
        if type(value) is not list:
            raise wrong_type(place, "array", value)
        return value

    def measure(self, value: Sequence[Any], place: str) -> None:
        """Refuse a list that is too short or too long."""
        most = self.most
        if most is None and not self.least:
            return
        if callable(most):
            most = most()
        if self.least <= len(value) and (most is None or len(value) <= most):
            return
        message = self.sentence.format(name=place, least=self.least, most=most, size=len(value))
        raise refuse(place, message, **self.details)

    def items_schema(self) -> Schema:
        return {}

    def rules(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.items_schema()}
        if self.least:
            schema["minItems"] = self.least
        if isinstance(self.most, int):
            schema["maxItems"] = self.most
        return schema


class Array(Listed[Any]):
    """A list of JSON values.

    Args:
        of: the description of its elements.
    """

    def __init__(
        self, about: str = "", *, of: Schema | type[Members] | None = None, **words: Any
    ) -> None:
        super().__init__(about, **words)
        self.of = of or {}

    def check(self, value: Any, place: str) -> list[Any]:
        found = super().check(value, place)
        self.measure(found, place)
        return found

    def items_schema(self) -> Schema:
        return self.of if isinstance(self.of, dict) else self.of.reference()


class Objects(Array):
    """A list of objects, which are read separately."""

    def check(self, value: Any, place: str) -> list[dict[str, Any]]:
        found = super().check(value, place)
        for index, item in enumerate(found):
            if type(item) is not dict:
                raise wrong_type(f"{place}[{index}]", "object", item)
        return found


class Texts(Listed[str]):
    """A list of strings, each with the rules of a `Text`."""

    def __init__(
        self,
        about: str = "",
        *,
        longest: int = 255,
        pattern: re.Pattern[str] | None = None,
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.each = Text(longest=longest, pattern=pattern)

    def check(self, value: Any, place: str) -> list[str]:
        found = super().check(value, place)
        longest, pattern = self.each.longest, self.each.pattern
        for index, item in enumerate(found):
            if type(item) is not str or len(item) > longest or pattern is not None:
                self.each.check(item, f"{place}[{index}]")
        self.measure(found, place)
        return found

    def items_schema(self) -> Schema:
        return self.each.json_schema()


class Duration(Member[timedelta | None]):
    """A length of time: whole seconds, or ISO 8601 text."""

    def __init__(
        self,
        about: str = "",
        *,
        least: timedelta = timedelta(0),
        most: timedelta = LONGEST,
        **words: Any,
    ) -> None:
        super().__init__(about, **words)
        self.least = least
        self.most = most

    def check(self, value: Any, place: str) -> timedelta:
        if isinstance(value, str):
            try:
                length = parse_duration(value)
            except ValueError as problem:
                raise refuse(
                    place, f"The '{place}' field is not a duration: {problem}", validation="format"
                ) from None
        else:
            length = timedelta(seconds=SECONDS.check(value, place))
        return self.within(length, place)

    def within(self, length: timedelta, place: str) -> timedelta:
        if length < self.least:
            raise refuse(place, f"The '{place}' field must be positive.", validation="range")
        if length > self.most:
            longest = format_duration(self.most)
            raise refuse(
                place, f"The '{place}' field is longer than {longest}.", validation="range"
            )
        return length

    def rules(self) -> Schema:
        return seconds_schema(math.ceil(self.least.total_seconds()), int(self.most.total_seconds()))


class Period(Duration):
    """A length of time that may also be given in milliseconds, as `<name>_ms`, which wins.

    Args:
        in_milliseconds: the description of that member.
    """

    milliseconds = Integer(most=CENTURY * 1000)

    def __init__(self, about: str = "", *, in_milliseconds: str = "", **words: Any) -> None:
        super().__init__(about, **words)
        self.in_milliseconds = in_milliseconds

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        self.name_ms = f"{name}_ms"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name_ms, self.name)

    def read(self, document: Document) -> timedelta | None:
        value = document.get(self.name_ms)
        if value is not None:
            found = timedelta(milliseconds=self.milliseconds.check(value, self.name_ms))
            return self.within(found, self.name_ms)
        value = document.get(self.name)
        return None if value is None else self.check(value, self.name)

    def properties(self) -> dict[str, Schema]:
        schema = self.milliseconds.rules() | {"minimum": self.least // MILLISECOND}
        if self.in_milliseconds:
            schema["description"] = self.in_milliseconds
        return {self.name_ms: schema, self.name: self.json_schema()}


class Seconds(Member[timedelta | None]):
    """A length of time in whole seconds."""

    def __init__(self, about: str = "", *, least: int = 1, **words: Any) -> None:
        super().__init__(about, **words)
        self.whole = Integer(least=least, most=CENTURY)

    def check(self, value: Any, place: str) -> timedelta:
        return timedelta(seconds=self.whole.check(value, place))

    def rules(self) -> Schema:
        return self.whole.rules()


class JobId(Member[UUID | None]):
    def check(self, value: Any, place: str) -> UUID:
        found = parse_uuid(value)
        if found is not None:
            return found
        JOB_ID.check(value, place)
        raise refuse(place, f"The '{place}' field must be a job id (a UUID), not {value!r}.")

    def rules(self) -> Schema:
        return {"type": "string", "format": "uuid"}


class Moment(Declared):
    """A moment: an RFC 3339 timestamp, or `+PT5S`, counted from now (OJS JSON format §5).

    Args:
        ahead: refuse one that has passed.
    """

    def __init__(self, about: str = "", *, ahead: bool = False, **words: Any) -> None:
        super().__init__(about, **words)
        self.is_ahead = ahead

    def read(self, document: Document, now: datetime) -> datetime | None:
        """
        Raises:
            InvalidRequest: it is neither, or has passed; `details["field"]` names it.
        """
        value = document.get(self.name)
        return None if value is None else self.check(value, self.name, now)

    def check(self, value: Any, place: str, now: datetime) -> datetime:
        text = WHEN.check(value, place)
        try:
            found = parse_when(text, now)
        except ValueError as problem:
            raise refuse(
                place, f"The '{place}' field is not a timestamp: {problem}", validation="format"
            ) from None
        if self.is_ahead and found <= now:
            raise refuse(place, f"The '{place}' field must lie ahead.", validation="range")
        return found

    def rules(self) -> Schema:
        return dict(MOMENT)


class OlderThan(Moment):
    """A moment, or how long ago that was: `7d`, as typed on a command line."""

    def check(self, value: Any, place: str, now: datetime) -> datetime:
        text = WHEN.check(value, place)
        if not SPAN.fullmatch(text):
            return super().check(text, place, now)
        try:
            return now - parse_span(text)
        except ValueError as problem:
            raise refuse(place, f"The '{place}' field: {problem}", validation="range") from None

    def rules(self) -> Schema:
        return {"anyOf": [super().rules(), AGE]}


AGE: Schema = {"type": "string", "pattern": r"^[0-9]{1,9}[smhdw]$", "examples": ["7d"]}
TEXT = Text()
FILLED = Text(filled=True)
WHEN = Text(longest=64)
JOB_ID = Text(longest=64, filled=True)
SECONDS = Integer(most=CENTURY)


class Members:
    """The members of an object: each attribute of a subclass declares one.

        class Handler(Members, about="One type that a worker takes."):
            type = Text().required()

    Class arguments:
        about: a sentence for readers.
        component: the name of its schema in the OpenAPI document, if that is shared.
        closed: other members are refused, and so are those of its subclasses.
        needs: required members, besides those that are declared so; see `demand`.
        either: at least one of these members is required.
        rules: JSON Schema besides that of the members.
    """

    members: ClassVar[dict[str, Declared]] = {}
    names: ClassVar[frozenset[str]] = frozenset()
    """Names of all members that are accepted, including hidden ones."""
    component: ClassVar[str] = ""
    is_closed: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    _words: ClassVar[Schema] = {}

    def __init_subclass__(
        cls,
        *,
        about: str = "",
        component: str = "",
        closed: bool = False,
        needs: tuple[str, ...] = (),
        either: tuple[str, ...] = (),
        rules: Schema | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.members = {}
        # The class's own members first, the natural order for readers.
        for base in cls.__mro__:
            for name, item in vars(base).items():
                if isinstance(item, Declared):
                    cls.members.setdefault(name, item)
        cls.names = frozenset(name for member in cls.members.values() for name in member.names)
        cls.component = component
        cls.is_closed = closed or any(getattr(base, "is_closed", False) for base in cls.__bases__)
        cls.needs = needs
        words: Schema = {}
        if about:
            words["description"] = about
        if cls.is_closed:
            words["additionalProperties"] = False
        if either:
            # Inside `allOf`: beside `properties`, tools that make clients read the alternatives as
            # types without members.
            words["allOf"] = [{"anyOf": [{"required": [name]} for name in either]}]
        cls._words = words | (rules or {})

    @classmethod
    def refuse_others(cls, document: Document, *, also: Collection[str] = ()) -> None:
        """Refuse a document with members that would be ignored, such as misspelt ones.

        Args:
            also: members that are accepted besides those that are declared.

        Raises:
            InvalidRequest: the document has another member.
        """
        for member in document:
            if member not in cls.names and member not in also:
                known = ", ".join(cls.members)
                shown = member[:80]
                are = "are" if len(cls.members) > 1 else "is only"
                raise refuse(shown, f"There is no member '{shown}'; there {are} {known}.")

    @classmethod
    def demand(cls, document: Document) -> None:
        """Refuse a document without one of `needs`, before reading anything else of it."""
        for name in cls.needs:
            if document.get(name) is None:
                raise missing(name)

    @classmethod
    def described(cls) -> Iterator[Declared]:
        return (member for member in cls.members.values() if not member.is_hidden)

    @classmethod
    def json_schema(cls) -> Schema:
        schema: Schema = {"type": "object", "properties": {}}
        for member in cls.described():
            schema["properties"] |= member.properties()
        needs = {name for base in cls.__mro__ for name in getattr(base, "needs", ())}
        required = [
            member.name for member in cls.described() if member.is_required or member.name in needs
        ]
        if required:
            schema["required"] = required
        return schema | cls._words

    @classmethod
    def reference(cls) -> Schema:
        """The schema, or a reference to it within the OpenAPI document."""
        if cls.component:
            return {"$ref": f"#/components/schemas/{cls.component}"}
        return cls.json_schema()
