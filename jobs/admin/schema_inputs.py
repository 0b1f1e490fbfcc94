"""Inputs for the arguments that a type's newest schema describes, beside the form's JSON.

Only simple values have one: a text, a number, yes or no, one of a list. What is filled in goes
into the JSON arguments of the form, which can say everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import JobSchema

MOST = 50
"""Parts of the arguments that are described, and inputs that are shown."""
MANY = 500
"""Choices of one input; a longer list is typed as JSON."""
BOOLEANS = (("", "–"), ("true", _("yes")), ("false", _("no")))
TEXT = {"class": "vTextField", "autocomplete": "off"}
PREFIX = "input-"
"""Of the names of inputs: the rest is the part's, so that none is taken for another."""


@dataclass(frozen=True)
class Part:
    """An argument, or a member of one that is an object."""

    place: int
    member: str | None
    schema: dict[str, Any]
    is_required: bool = False
    is_bare: bool = False
    """The schema describes the first argument without saying so."""

    @property
    def name(self) -> str:
        """How it is called on the page: `[0].to`."""
        if self.member is None:
            return f"[{self.place}]"
        return self.member if self.is_bare else f"[{self.place}].{self.member}"

    @property
    def kind(self) -> str:
        """Its type; with null beside it, still that."""
        kinds = self.schema.get("type")
        kinds = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
        return str(kinds[0]) if len(kinds) == 1 else ""

    def described(self) -> str:
        """One line about it."""
        kind = self.schema.get("type") or ("enum" if "enum" in self.schema else "")
        kind = " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
        choices = self.schema.get("enum")
        parts = [kind, gettext("required") if self.is_required else ""]
        parts.append(", ".join(map(str, choices)) if isinstance(choices, list) else "")
        parts.append(str(self.schema.get("description", "")))
        return f"{self.name}: {'; '.join(part for part in parts if part)}"[:300]

    def field(self) -> forms.Field | None:
        """Its input; None if only JSON can say it."""
        about: dict[str, Any] = {"required": False}
        about["help_text"] = str(self.schema.get("description", ""))[:300]
        choices = self.schema.get("enum")
        if isinstance(choices, list) and len(choices) <= MANY:
            named = [(json.dumps(one), str(one)) for one in choices]
            return forms.ChoiceField(choices=[("", "–"), *named], **about)
        if self.kind == "boolean":
            return forms.ChoiceField(choices=BOOLEANS, **about)
        if self.kind == "integer":
            return forms.IntegerField(localize=False, **about)
        if self.kind == "number":
            return forms.FloatField(localize=False, **about)
        if self.kind == "string":
            return forms.CharField(widget=forms.TextInput(attrs=TEXT), **about)
        return None

    def value(self, cleaned: Any) -> Any:
        """What is filled in, as JSON has it."""
        is_chosen = "enum" in self.schema or self.kind == "boolean"
        return json.loads(cleaned) if is_chosen else cleaned


def newest(type: str) -> Any:
    """The newest schema of a type as it is typed; None if it has none."""
    if not type or "\x00" in type:  # the field of the type says what is wrong with it
        return None
    return JobSchema.objects.filter(type=type).first()


def parts(schema: Any) -> list[Part]:
    """What a JSON Schema of arguments describes, in its order."""
    return list(_parts(schema))[:MOST]


def _parts(schema: Any) -> Iterator[Part]:
    if not isinstance(schema, dict):
        return
    items = schema.get("prefixItems") or schema.get("items")
    arguments = items if isinstance(items, list) else [items if isinstance(items, dict) else schema]
    for place, argument in enumerate(arguments):
        if not isinstance(argument, dict):
            continue
        is_bare = argument is schema
        members = argument.get("properties")
        if not isinstance(members, dict):
            if not is_bare:
                yield Part(place, None, argument)
            continue
        required = argument.get("required")
        required = required if isinstance(required, list) else []
        for name, member in members.items():
            member = member if isinstance(member, dict) else {}
            yield Part(place, name, member, name in required, is_bare)


class SchemaInputs(forms.Form):
    """The inputs of a type; a type without a schema has none."""

    required_css_class = "required"

    def __init__(self, type: str, data: Any = None, typed: Any = None) -> None:
        """Take `data` that was sent, or show what was `typed`."""
        super().__init__(data, auto_id="id_%s", initial=typed.dict() if typed else None)
        self.type = type
        self.schema = newest(type)
        self.parts: dict[str, Part] = {}
        found = parts(self.schema.schema) if self.schema else []
        has_one = len({part.place for part in found}) == 1
        for part in found:
            field = part.field()
            if field is not None:
                field.label = part.member if has_one and part.member else part.name
                self.fields[PREFIX + part.name] = field
                self.parts[PREFIX + part.name] = part

    @property
    def title(self) -> str:
        """What the inputs are headed with."""
        if self.schema is None:
            return ""
        return gettext("Arguments of version %(version)s") % {"version": self.schema.version}

    def clean(self) -> None:
        """Refuse what was filled in for another type, or for another version of the schema."""
        super().clean()
        sent = ((name, value) for name, value in self.data.items() if name.startswith(PREFIX))
        strange = sorted(name for name, value in sent if value and name not in self.fields)
        if strange:
            text = gettext(
                "“%(name)s” was filled in, but is not an argument of “%(type)s”: check the type "
                "and its arguments."
            )
            about = {"name": strange[0].removeprefix(PREFIX)[:100], "type": self.type[:255]}
            raise forms.ValidationError(text % about)

    def fill(self, args: list[Any]) -> list[Any]:
        """`args` with what was filled in.

        Raises:
            ValidationError: an input is a member of an argument that is no object.
        """
        filled = list(args)
        for name, part in self.parts.items():
            cleaned = self.cleaned_data.get(name)
            if cleaned in (None, ""):
                continue
            while len(filled) <= part.place:
                filled.append(None)
            if part.member is None:
                filled[part.place] = part.value(cleaned)
                continue
            if filled[part.place] is None:
                filled[part.place] = {}
            if not isinstance(filled[part.place], dict):
                text = gettext(
                    "Argument %(place)d is not an object, so “%(name)s” cannot be in it."
                )
                raise forms.ValidationError(text % {"place": part.place, "name": part.member[:100]})
            filled[part.place] = {**filled[part.place], part.member: part.value(cleaned)}
        return filled
