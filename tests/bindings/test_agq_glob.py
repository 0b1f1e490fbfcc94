"""Patterns of keys, as Redis matches them (KEYS and SCAN, AGQ §9.2)."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.bindings.agq import glob


def matches(pattern: str, key: str) -> bool:
    return glob.matcher(pattern.encode())(key.encode())


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("h?llo", ["hello", "hxllo"], ["hllo", "heello", "Hello"]),
        ("h*llo", ["hllo", "heeeello"], ["hell", "xhllo"]),
        ("h[ae]llo", ["hello", "hallo"], ["hillo", "hllo"]),
        ("h[^e]llo", ["hallo", "hbllo"], ["hello", "hllo"]),
        ("h[a-b]llo", ["hallo", "hbllo"], ["hcllo"]),
        ("h[b-a]llo", ["hallo", "hbllo"], ["hcllo"]),
        (r"h\?llo", ["h?llo"], ["hello"]),
        (r"h\*", ["h*"], ["hello"]),
        (r"h\[a]", ["h[a]"], ["ha"]),
        (r"[\]a]", ["]", "a"], ["\\", "b"]),
        (r"[\^a]", ["^", "a"], ["\\", "b"]),
        ("[a-", ["a", "-"], ["b"]),
        ("[abc", ["a", "c"], ["d", "[abc"]),
        ("[]", [], ["", "[]", "]"]),
        ("[^]", ["a", "]"], ["", "ab"]),
        ("\\", ["\\"], [""]),
        ("a\\", ["a\\"], ["a"]),
        ("!a.b$(c)|d", ["!a.b$(c)|d"], ["!axb$(c)|d"]),
        ("[!a]", ["!", "a"], ["b"]),
        ("", [""], ["a"]),
        ("*", ["", "a", "a\nb"], []),
        ("**a**", ["a", "bab"], ["b"]),
        ("a*b*c", ["abc", "aXbXbYc"], ["acb", "ab"]),
        ("*ab*ab", ["abab", "xababab"], ["ab", "xab"]),
        ("*aab", ["aaab"], ["aabb"]),
        ("worker:*:alive", ["worker:w-1:alive"], ["worker:w-1:stats", "worker:alive"]),
    ],
)
def test_a_pattern_fits_what_it_fits_in_redis(pattern, fitting, others):
    assert [key for key in fitting if not matches(pattern, key)] == []
    assert [key for key in others if matches(pattern, key)] == []


SIGNS = st.text("ab*?", max_size=12)


@given(SIGNS, st.text("ab", max_size=12))
def test_what_all_globs_have_in_common_is_the_same_here(pattern, key):
    assert matches(pattern, key) == fnmatch.fnmatchcase(key, pattern)


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_no_bytes_are_too_strange_for_a_pattern(pattern, key):
    assert glob.matcher(pattern)(key) in (True, False)
    assert glob.matcher(b"*")(key)


@given(st.text("ab*?[]\\^-", max_size=12), st.text("ab", max_size=12))
def test_every_key_begins_as_its_pattern_does(pattern, key):
    if matches(pattern, key):
        assert key.encode().startswith(glob.literal_beginning(pattern.encode()))


def test_the_work_does_not_explode():
    """With backtracking, this would outlast the universe."""
    key = "a" * 1000

    assert not matches("*a" * 500 + "b", key)
    assert not matches("*[a-z]?" * 140 + "!", key)
    assert matches("*a" * 500, key)


def test_a_pattern_longer_than_any_key_is_refused():
    with pytest.raises(ValueError, match="1024 bytes"):
        glob.matcher(b"*" * 1025)
