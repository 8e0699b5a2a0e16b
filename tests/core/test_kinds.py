from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from moongate.core.kinds import (
    Amount,
    Bytes,
    Day,
    Kind,
    OneOf,
    Seconds,
    Share,
    Switch,
    Text,
    Whole,
    WrongError,
    shown,
)

KINDS = (
    Whole(1, 9),
    Whole(0),
    Bytes(1024),
    Seconds(),
    Seconds(zero=True),
    Share(),
    Amount(),
    Day(),
    Switch(),
    OneOf(("a", "b")),
    Text(),
)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (Whole(1, 9), 9, 9),
        (Whole(1, 9), 1, 1),
        (Whole(0), 10**12, 10**12),
        (Bytes(1), 1, 1),
        (Bytes(1), "1B", 1),
        (Bytes(1), "64KB", 65536),
        (Bytes(1), "64 kib", 65536),
        (Bytes(1), "32MB", 33554432),
        (Bytes(1), "1.5MB", 1572864),
        (Bytes(1), "12GB", 12884901888),
        (Bytes(1), "1TB", 1099511627776),
        (Seconds(), 2, 2.0),
        (Seconds(), 0.25, 0.25),
        (Seconds(), "250ms", 0.25),
        (Seconds(), "30s", 30.0),
        (Seconds(), "1.5 m", 90.0),
        (Seconds(), "2h", 7200.0),
        (Seconds(), "7d", 604800.0),
        (Seconds(zero=True), 0, 0.0),
        (Share(), 0, 0.0),
        (Share(), 1, 1.0),
        (Share(), 0.1, 0.1),
        (Amount(), 0.95, 950_000),
        (Amount(), 0, 0),
        (Amount(), 0.000001, 1),
        (Amount(), 1_000_000, 10**12),
        (Day(), "2026-09-01", "2026-09-01"),
        (Switch(), True, True),
        (OneOf(("a", "b")), "b", "b"),
        (Text(), "x y", "x y"),
        (Text("[a-c]+"), "abc", "abc"),
    ],
)
def test_what_is_written_becomes_its_value(kind: Kind, written: object, value: object) -> None:
    made = kind.parse(written)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("kind", "written", "problem", "mend"),
    [
        (Whole(1, 9), 0, "0 is out of range", "write a number from 1 to 9"),
        (Whole(1, 9), 10, "10 is out of range", "write a number from 1 to 9"),
        (Whole(2), 1, "1 is out of range", "write 2 or more"),
        (Whole(1), "8", '"8" is not a whole number', "write 1 or more"),
        (Whole(1), True, "true is not a whole number", "write 1 or more"),
        (Whole(1), 1.0, "1.0 is not a whole number", "write 1 or more"),
        (Bytes(1), "32XB", '"32XB" is not a size', '"32MB"'),
        (Bytes(1), "1.3B", '"1.3B" is not a size', "write bytes"),
        (Bytes(1), False, "false is not a size", "write bytes"),
        (Bytes(1), "1KBs", '"1KBs" is not a size', "write bytes"),
        (Bytes(2048), "1KB", '"1KB" is too small', "write 2048 bytes or more"),
        (Seconds(), "1 week", '"1 week" is not a duration', '"30s"'),
        (Seconds(), True, "true is not a duration", "write seconds"),
        (Seconds(), None, "null is not a duration", "write seconds"),
        (Seconds(), 0, "0 is too short", "write more than 0"),
        (Seconds(), "0s", '"0s" is too short', "write more than 0"),
        (Seconds(zero=True), -1, "-1 is too short", "write 0 or more"),
        (Seconds(), "367d", '"367d" is too long', "a year"),
        (Seconds(), 10**400, "is too long", "a year"),
        (Share(), 1.1, "1.1 is not a share", "write a number from 0 to 1"),
        (Share(), -0.1, "-0.1 is not a share", "write a number from 0 to 1"),
        (Share(), True, "true is not a share", "write a number from 0 to 1"),
        (Share(), "1", '"1" is not a share', "write a number from 0 to 1"),
        (Amount(), -0.01, "-0.01 is not an amount", "such as 0.95"),
        (Amount(), 1_000_001, "is not an amount", "0 or more"),
        (Amount(), True, "true is not an amount", "0 or more"),
        (Amount(), "0.95", '"0.95" is not an amount', "0 or more"),
        (Amount(), float("nan"), "nan is not an amount", "0 or more"),
        (Amount(), 0.0000001, "finer than a millionth", "six decimals"),
        (Day(), "2026-13-01", '"2026-13-01" is not a day', "2026-09-01"),
        (Day(), "20260901", '"20260901" is not a day', "2026-09-01"),
        (Day(), 2026, "2026 is not a day", "2026-09-01"),
        (Switch(), "yes", '"yes" is neither true nor false', "write true or false"),
        (Switch(), 1, "1 is neither true nor false", "write true or false"),
        (OneOf(("a", "b")), "c", '"c" is not known here', "write a or b"),
        (OneOf(("a", "b")), 1, "1 is not known here", "write a or b"),
        (Text(), "a\nb", "cannot stand here", "without control characters"),
        (Text(), "", '"" cannot stand here', "not empty"),
        (Text("[a-c]+", "write a, b, c"), "abcd", '"abcd" cannot stand here', "write a, b, c"),
        (Text(), 5, "5 is not a text", 'write it in quotes ("5") if it is meant'),
    ],
)
def test_what_cannot_be_is_refused_with_the_mend(
    kind: Kind, written: object, problem: str, mend: str
) -> None:
    with pytest.raises(WrongError) as caught:
        kind.parse(written)
    assert problem in caught.value.problem
    assert mend in caught.value.mend


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_each_kind_has_a_word_for_people_and_a_schema(kind: Kind) -> None:
    assert kind.word
    assert kind.schema()


def test_schemas_say_the_bounds() -> None:
    assert Whole(1, 9).schema() == {"type": "integer", "minimum": 1, "maximum": 9}
    assert Whole(1).schema() == {"type": "integer", "minimum": 1}
    assert OneOf(("a", "b")).schema() == {"enum": ["a", "b"]}
    assert OneOf(("a", "b")).word == "`a` or `b`"


def test_a_kind_that_is_none_says_so() -> None:
    with pytest.raises(NotImplementedError):
        Kind().parse(1)
    with pytest.raises(NotImplementedError):
        Kind().schema()


def test_pydantic_meets_a_kind_beside_a_type() -> None:
    adapter = TypeAdapter(Annotated[int, Bytes(1)])
    assert adapter.validate_python("2KB") == 2048
    with pytest.raises(ValidationError, match="is not a size"):
        adapter.validate_python("2XB")


def test_values_are_shown_short_and_as_the_file_writes_them() -> None:
    assert shown({"a": 1}) == "a mapping"
    assert shown([1]) == "a list"
    assert shown("x" * 41) == '"' + "x" * 37 + '..."'
    assert shown("x" * 40) == '"' + "x" * 40 + '"'
    assert shown(False) == "false"


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2)
)


@given(SCALARS, st.sampled_from(KINDS))
def test_a_kind_takes_a_value_or_says_what_is_wrong(value: object, kind: Kind) -> None:
    try:
        kind.parse(value)
    except WrongError as error:
        said = (error.problem, error.mend)
        assert not kind.takes(value)
    else:
        said = ("nothing", "to mend")
        assert kind.takes(value)
    assert all(said)
