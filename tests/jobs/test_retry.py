"""Backoff of failed jobs, final failures, and refused policies.

Delays reproduce the tables of OJS retry §3, §5 and §12 row by row.
"""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.spec.durations import LONGEST
from jobs.spec.retry import (
    GROWTH,
    MAX_ATTEMPTS,
    MAX_COEFFICIENT,
    READERS,
    InvalidRetryPolicy,
    RetryPolicy,
)

SECOND = timedelta(seconds=1)
MAX_INTERVAL = timedelta(minutes=5)

intervals = st.timedeltas(min_value=timedelta.resolution, max_value=LONGEST)
retry_numbers = st.integers(1, 10**6)
draws = st.floats(0, 1, exclude_max=True)


@st.composite
def policies(draw, **fixed):
    initial, longest = sorted((draw(intervals), draw(intervals)))
    return RetryPolicy(
        initial_interval=initial,
        max_interval=longest,
        backoff_coefficient=draw(st.floats(1, MAX_COEFFICIENT)),
        strategy=draw(st.sampled_from(sorted(GROWTH))),
        jitter=fixed.get("jitter", draw(st.booleans())),
    )


def delays(count, **document):
    """The first `count` delays under `document`, in seconds, without jitter."""
    policy = RetryPolicy.parse({"jitter": False} | document)
    return [policy.delay(number).total_seconds() for number in range(1, count + 1)]


def test_without_a_strategy_the_delay_grows_exponentially():
    expected = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]

    assert delays(10, initial_interval="PT1S", backoff_coefficient=2.0) == expected


@pytest.mark.parametrize("name", ["none", "constant"])
def test_the_constant_strategy_always_waits_the_initial_interval(name):
    assert delays(4, initial_interval="PT5S", backoff_strategy=name) == [5, 5, 5, 5]


def test_the_linear_strategy_adds_the_initial_interval_each_time():
    assert delays(4, initial_interval="PT5S", strategy="linear") == [5, 10, 15, 20]


def test_the_polynomial_strategy_raises_the_retry_number_to_the_coefficient():
    expected = [1, 16, 81, 256, 300]

    assert delays(5, strategy="polynomial", backoff_coefficient=4.0) == expected


def test_aggressive_retry_follows_the_schedule_of_the_specification():
    policy = {"initial_interval": "PT15S", "backoff_coefficient": 4.0, "max_interval": "PT1H"}

    assert delays(5, strategy="polynomial", **policy) == [15, 240, 1215, 3600, 3600]


def test_a_coefficient_of_one_polls_at_a_fixed_interval():
    policy = {"initial_interval": "PT10S", "backoff_coefficient": 1.0, "max_interval": "PT10S"}

    assert delays(60, **policy) == [10] * 60


def test_there_is_no_retry_before_the_first():
    policy = RetryPolicy(jitter=False, backoff_coefficient=10)

    assert policy.delay(0) == policy.delay(-5) == policy.delay(1) == SECOND


@given(policies(jitter=False), retry_numbers)
def test_without_jitter_a_later_retry_never_waits_less(policy, number):
    assert policy.delay(number) <= policy.delay(number + 1)


@given(policies(jitter=False), retry_numbers)
def test_without_jitter_the_delay_lies_between_the_intervals(policy, number):
    assert policy.initial_interval <= policy.delay(number) <= policy.max_interval


@given(policies(), retry_numbers, draws)
def test_no_delay_is_negative_or_exceeds_the_maximum(policy, number, drawn):
    assert timedelta(0) <= policy.delay(number, random=lambda: drawn) <= policy.max_interval


@pytest.mark.parametrize("strategy", ["linear", "exponential", "polynomial"])
@pytest.mark.parametrize("number", [10**6, 10**400])
def test_growth_beyond_all_numbers_ends_at_the_maximum(strategy, number):
    policy = RetryPolicy(strategy=strategy, backoff_coefficient=MAX_COEFFICIENT, jitter=False)

    assert policy.delay(number) == MAX_INTERVAL


@pytest.mark.parametrize(
    ("number", "least", "most"),
    [(1, 5, 15), (2, 10, 30), (3, 20, 60), (4, 40, 120), (5, 80, 240), (6, 150, 300)],
)
def test_jitter_follows_the_table_of_the_specification(number, least, most):
    policy = RetryPolicy(initial_interval=timedelta(seconds=10))

    assert policy.delay(number, random=lambda: 0.0) == timedelta(seconds=least)
    assert policy.delay(number, random=lambda: 1.0) == timedelta(seconds=most)


def test_jitter_may_leave_the_delay_alone():
    assert RetryPolicy().delay(3, random=lambda: 0.5) == 4 * SECOND


def test_jitter_is_drawn_afresh_each_time():
    policy = RetryPolicy(initial_interval=MAX_INTERVAL, max_interval=LONGEST)
    drawn = {policy.delay(1) for _ in range(50)}

    assert len(drawn) > 1
    assert all(0.5 * MAX_INTERVAL <= delay < 1.5 * MAX_INTERVAL for delay in drawn)


def test_a_jittered_delay_is_never_below_zero():
    assert RetryPolicy().delay(1, random=lambda: -1.0) == timedelta(0)


@pytest.mark.parametrize(
    ("error_type", "retryable"),
    [
        ("validation.payload_invalid", False),
        ("validation.schema_error", True),
        ("auth.token_expired", False),
        ("auth.forbidden", False),
        ("auth", True),
        ("external.auth.failure", True),
        ("authority.missing", True),
        ("validation.payload_invalid.again", True),
        ("", True),
    ],
)
def test_an_error_matches_exactly_or_by_a_prefix(error_type, retryable):
    policy = RetryPolicy.parse({"non_retryable_errors": ["validation.payload_invalid", "auth.*"]})

    assert policy.is_retryable(error_type) is retryable


def test_an_error_may_match_by_its_code():
    policy = RetryPolicy.parse({"non_retryable_errors": ["FatalError", "card.*"]})

    assert not policy.is_retryable("RuntimeError", "FatalError")
    assert not policy.is_retryable("RuntimeError", code="card.stolen")
    assert policy.is_retryable("RuntimeError", "handler_error")


def test_a_star_without_a_dot_is_no_wildcard():
    assert RetryPolicy.parse({"non_retryable_errors": ["*", "auth*"]}).is_retryable("auth.x")


def test_by_default_every_error_is_retried():
    assert RetryPolicy().is_retryable("anything.at_all", "DEAD_LETTER")


@pytest.mark.parametrize("document", [None, {}, {"jitter": None}, {"x_new_in_2.0": 1}])
def test_a_document_that_says_nothing_is_the_one_default_policy(document):
    assert RetryPolicy.parse(document) is RetryPolicy.parse(None)


def test_the_default_policy_is_that_of_the_specification():
    intervals = {"initial_interval": "PT1S", "backoff_coefficient": 2.0, "max_interval": "PT5M"}
    others = {"max_attempts": 3, "jitter": True, "non_retryable_errors": []}

    assert RetryPolicy.parse(intervals | others) == RetryPolicy.parse(None)
    assert RetryPolicy.parse(None).on_exhaustion == "discard"


def test_a_partial_document_keeps_the_other_defaults():
    policy = RetryPolicy.parse({"max_attempts": 10, "jitter": False})

    assert policy == RetryPolicy(max_attempts=10, jitter=False)


def test_every_field_of_a_full_document_counts():
    intervals = {"initial_interval": "PT15S", "max_interval": "PT1H", "backoff_coefficient": 4}
    ending = {"non_retryable_errors": ["card.*", "a.b"], "on_exhaustion": "dead_letter"}
    others = {"max_attempts": 25, "jitter": False, "backoff_strategy": "polynomial"}

    assert RetryPolicy.parse(intervals | ending | others) == RetryPolicy(
        max_attempts=25,
        initial_interval=timedelta(seconds=15),
        backoff_coefficient=4.0,
        max_interval=timedelta(hours=1),
        jitter=False,
        non_retryable_errors=("card.*", "a.b"),
        on_exhaustion="dead_letter",
        strategy="polynomial",
        explicit_exhaustion=True,
    )


@pytest.mark.parametrize(
    ("document", "explicit"),
    [
        (None, False),
        ({"max_attempts": 1}, False),
        ({"max_attempts": 1, "on_exhaustion": None}, False),
        ({"on_exhaustion": "discard"}, True),
        ({"onExhaustion": "dead_letter"}, True),
    ],
)
def test_a_policy_knows_whether_the_client_chose_what_exhaustion_does(document, explicit):
    assert RetryPolicy.parse(document).explicit_exhaustion is explicit


@pytest.mark.parametrize(
    ("alias", "value", "field", "meaning"),
    [
        ("maxAttempts", 7, "max_attempts", 7),
        ("initialInterval", "PT2S", "initial_interval", 2 * SECOND),
        ("initial_interval", "2s", "initial_interval", 2 * SECOND),
        ("initial_interval_ms", 100, "initial_interval", SECOND / 10),
        ("initial_delay_ms", 100, "initial_interval", SECOND / 10),
        ("backoffCoefficient", 3, "backoff_coefficient", 3.0),
        ("maxInterval", "PT1M", "max_interval", 60 * SECOND),
        ("max_interval", "300s", "max_interval", 300 * SECOND),
        ("max_interval_ms", 60_000, "max_interval", 60 * SECOND),
        ("nonRetryableErrors", ["a.b"], "non_retryable_errors", ("a.b",)),
        ("onExhaustion", "dead_letter", "on_exhaustion", "dead_letter"),
        ("strategy", "constant", "strategy", "none"),
        ("backoff_strategy", "linear", "strategy", "linear"),
        ("backoff_type", "constant", "strategy", "none"),
    ],
)
def test_a_field_may_be_spelled_as_public_clients_spell_it(alias, value, field, meaning):
    assert getattr(RetryPolicy.parse({alias: value}), field) == meaning


def test_the_spelling_of_the_specification_wins():
    assert RetryPolicy.parse({"maxAttempts": 9, "max_attempts": 5}).max_attempts == 5
    assert RetryPolicy.parse({"max_attempts": 5, "maxAttempts": 9}).max_attempts == 5


def test_an_initial_interval_above_the_default_maximum_raises_the_maximum():
    policy = RetryPolicy.parse({"initial_interval": "PT10M", "jitter": False})

    assert policy.delay(1) == policy.delay(2) == policy.max_interval == timedelta(minutes=10)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("max_attempts", -1, "must not be negative"),
        ("max_attempts", MAX_ATTEMPTS + 1, "must be at most 10000"),
        ("max_attempts", 10**400, "must be at most"),
        *[("max_attempts", value, "must be an integer") for value in (True, 3.0, "3", [3], {})],
        ("maxAttempts", "3", "must be an integer"),
        *[("initial_interval", value, "must be a string") for value in (1, 1.5, True, ["PT1S"])],
        *[
            ("initial_interval", value, "is not a valid duration")
            for value in ("", "banana", "PT", "1", "1m", "1.5s", "-1s", "s", "1S", "1s\n", "²s")
        ],
        ("initial_interval", "9" * 60 + "s", "is not a valid duration"),
        ("initial_interval", "9" * 1_000_000 + "s", "is not a valid duration"),
        *[("initial_interval", value, "must be greater") for value in ("PT0S", "0s", "P0D")],
        ("initial_interval", "PT0.0000001S", "must be greater than zero"),
        ("initial_interval", "P101Y", "is not a valid duration"),
        *[("initial_interval_ms", value, "must be an integer") for value in (1.5, "100", True)],
        ("initial_interval_ms", 0, "must be greater than zero"),
        ("initial_interval_ms", -100, "must be greater than zero"),
        ("initial_delay_ms", 10**400, "must be at most 100 years"),
        ("max_interval_ms", -(10**400), "must be at most 100 years"),
        *[("backoff_coefficient", value, "must be at least 1.0") for value in (0.5, 0, -2, -1e999)],
        *[("backoff_coefficient", value, "must be a number") for value in (True, "2.0", [2])],
        *[
            ("backoff_coefficient", value, "must be a number of at most 1000000")
            for value in (float("inf"), float("nan"), 1e7, 10**400)
        ],
        *[("max_interval", value, "must be a string") for value in (300, False, {})],
        ("max_interval", "soon", "is not a valid duration"),
        ("max_interval", "PT0.5S", "must be at least initial_interval, which is PT1S"),
        ("max_interval_ms", 500, "must be at least initial_interval, which is PT1S"),
        *[("jitter", value, "must be true or false") for value in (1, 0, "true", 0.1, "full")],
        *[
            ("non_retryable_errors", value, "must be an array of non-empty strings")
            for value in ("auth.*", {"auth.*": 1}, [1], [None], ["a", ""], [["a"]], True)
        ],
        *[
            ("on_exhaustion", value, "must be one of discard, dead_letter")
            for value in ("drop", "", "Discard", True, 1, ["discard"], {})
        ],
        *[
            (key, value, "must be one of none, linear, exponential, polynomial, constant")
            for key in ("strategy", "backoff_strategy", "backoff_type")
            for value in ("fibonacci", 1, ["none"])
        ],
    ],
)
def test_a_broken_rule_is_refused_by_the_name_of_the_field(field, value, complaint):
    with pytest.raises(InvalidRetryPolicy) as refusal:
        RetryPolicy.parse({field: value})

    assert refusal.value.field == field
    assert str(refusal.value).startswith(f"{field} {complaint}")


@pytest.mark.parametrize("document", [5, 0, True, False, "PT1S", "", [], [{"max_attempts": 1}]])
def test_a_policy_is_an_object_and_nothing_else(document):
    with pytest.raises(InvalidRetryPolicy, match="retry must be an object"):
        RetryPolicy.parse(document)


def test_a_maximum_below_the_initial_interval_is_refused():
    with pytest.raises(InvalidRetryPolicy, match="max_interval must be at least initial_interval"):
        RetryPolicy.parse({"initial_interval": "PT10S", "max_interval": "PT9S"})


@pytest.mark.parametrize("attempts", [0, 1, MAX_ATTEMPTS])
def test_any_sensible_number_of_attempts_is_accepted(attempts):
    assert RetryPolicy.parse({"max_attempts": attempts}).max_attempts == attempts


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("PT1S"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*READERS, "other"]), json_values) | json_values)
def test_whatever_is_sent_becomes_a_sound_policy_or_is_refused(document):
    try:
        policy = RetryPolicy.parse(document)
    except InvalidRetryPolicy:
        return
    assert 0 <= policy.max_attempts <= MAX_ATTEMPTS
    assert timedelta(0) < policy.initial_interval <= policy.max_interval <= LONGEST
    assert 1 <= policy.backoff_coefficient <= MAX_COEFFICIENT
    assert timedelta(0) <= policy.delay(MAX_ATTEMPTS) <= policy.max_interval
