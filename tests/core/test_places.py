import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.mistakes import Place
from moongate.core.places import MOST_VALUES, matches, scalar, why_unread, written

PAGE = """\
listen: 127.0.0.1:80
edge:
  trusted: [unix, 10.0.0.0/8]
"""


def test_values_remember_where_they_and_their_keys_stand() -> None:
    page = written(PAGE, "m.yaml")
    assert page.values == {"listen": "127.0.0.1:80", "edge": {"trusted": ["unix", "10.0.0.0/8"]}}
    assert page.place(("listen",)) == Place("m.yaml", 1, 9)
    assert page.place(("edge", "trusted", 1)) == Place("m.yaml", 3, 19)
    assert page.keys["edge", "trusted"] == Place("m.yaml", 3, 3)
    assert page.place(("edge", "trusted", 1, "deeper")) == page.place(("edge", "trusted", 1))
    assert page.place(("nowhere",)) == Place("m.yaml", 1, 1)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null", "~"])
def test_an_empty_file_says_nothing(text: str) -> None:
    page = written(text, "m")
    assert page.values == {}
    assert page.mistakes == []
    assert page.place(("a",)) == Place("m")


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("", None),
        ("~", None),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("010", "010"),
        ("0x1F", 31),
        ("20_000", 20000),
        ("1__0", "1__0"),
        ("-3", -3),
        ("0.5", 0.5),
        ("1.5e+3", 1500.0),
        ("1.0e999", "1.0e999"),
        (".inf", ".inf"),
        ("9" * 5000, "9" * 5000),
        ("32MB", "32MB"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("!!int 5", 5),
    ],
)
def test_only_plain_true_false_null_and_numbers_are_more_than_text(word: str, value: object) -> None:
    page = written(f"a: {word}\n", "m")
    assert page.mistakes == []
    assert page.values["a"] == value
    assert type(page.values["a"]) is type(value)


def test_keys_are_words_even_where_they_look_like_numbers() -> None:
    assert written("on: 1\n5: 2\n", "m").values == {"on": 1, "5": 2}


def mistakes(text: str) -> list[str]:
    return [str(mistake) for mistake in written(text, "m").mistakes]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: 1\nb: 2\na: 3\n", "m:3:1: a: stands twice, first in line 1; keep one"),
        ("x:\n  a: 1\n  a: 1\n", "m:3:3: x.a: stands twice, first in line 2"),
        ("- a\n", "m:1:1: the file is not a mapping"),
        ("word", "m:1:1: the file is not a mapping"),
        ("a: [1\nb: 2\n", "m:2:"),
        ("a: *x\n", "m:1:4: not YAML"),
        ("a: 1\n---\nb: 2\n", "m:2:1: not YAML"),
        ("a: \x07\n", "m: not YAML: "),
        (
            "a: !!python/object:os.system x\n",
            "m:1:4: a: the tag tag:yaml.org,2002:python/object:os.system means",
        ),
        ("a: !secret x\n", "m:1:4: a: the tag !secret means nothing here"),
        ("? [a]\n: 1\n", "m:1:3: a key is not a word"),
        ("a: &a [*a]\n", "m: nested without end"),
        ("x: &x 5\na: {<<: *x}\n", "m:1:4: a: `<<` takes mappings only"),
    ],
)
def test_what_the_notation_gets_wrong_is_told_with_its_place(text: str, start: str) -> None:
    (said,) = mistakes(text)
    assert said.startswith(start)


def test_the_first_of_two_equal_keys_is_kept() -> None:
    assert written("a: 1\na: 2\n", "m").values == {"a": 1}


def test_aliases_that_multiply_without_end_are_refused() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))
    (said,) = mistakes(f"l0: &l0 1\n{levels}")
    assert "without end" in said
    assert MOST_VALUES < 10**6


def test_merged_mappings_give_what_is_not_written_here() -> None:
    page = written("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n", "m")
    assert page.values["c"] == {"x": 3, "y": 1, "z": 2}
    assert page.place(("c",)) == Place("m", 4, 3)
    assert page.place(("c", "x")) == Place("m", 5, 6)
    assert written("a: &a {x: 1}\nc: {<<: *a}\n", "m").values["c"] == {"x": 1}


def test_what_is_dropped_leaves_the_rest_where_it_was_written() -> None:
    page = written("a: [x, y, z, w]\nb: {c: 1}\n", "m")
    page.drop(("a", 2))
    page.drop(("a", 0))
    assert page.values["a"] == ["y", "w"]
    assert page.as_written(("a", 1)) == ("a", 3)
    page.add(("a", 1), "p", "m")
    assert str(page.mistakes[0]) == "m:1:14: a[3]: p; m"
    assert page.is_dropped(("a",))
    assert page.is_dropped(("a", 0, "inside"))
    assert not page.is_dropped(("a", 1))
    assert not page.is_dropped(("b",))
    page.drop(("b", "c"))
    assert page.values["b"] == {}
    assert page.is_dropped(("b", "c"))


def test_a_mistake_may_stand_at_its_key() -> None:
    page = written("key: value\n", "m")
    page.add(("key",), "p", "m", at_key=True)
    page.add(("none",), "p", "m", at_key=True)
    assert [mistake.place.column for mistake in page.mistakes] == [1, 1]
    page.add(("key",), "p", "m")
    assert page.mistakes[2].place.column == 6


def test_patterns_find_values_by_name_and_position() -> None:
    values = {"a": {"x": {"k": 1}, "y": {"k": 2}, "z": 3}, "b": [1]}
    assert list(matches(values, ("a", "*", "k"))) == [(("a", "x", "k"), 1), (("a", "y", "k"), 2)]
    assert list(matches(values, ("b", "*"))) == [(("b", 0), 1)]
    assert list(matches(values, ("b", "0"))) == []
    assert list(matches(values, ("c",))) == []


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@` \n\t0.,?<\x00\ud7ff", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    page = written(text, "m")
    assert isinstance(page.values, dict)
    assert all(mistake.problem and mistake.mend for mistake in page.mistakes)


@given(st.text(max_size=30))
def test_any_word_means_something(text: str) -> None:
    assert isinstance(scalar(text), str | int | float | None)


def test_why_a_file_cannot_be_read_is_told_in_a_few_words() -> None:
    assert why_unread(FileNotFoundError(2, "No such file or directory")) == "No such file or directory"
    assert why_unread(OSError()) == "no reason given"
    assert why_unread(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")) == "it is not UTF-8"
