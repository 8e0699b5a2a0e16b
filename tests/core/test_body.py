"""A body keeps every byte that nobody edits, and is refused for what it could be misread by."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moongate.core.body import DECIDING, RawBody
from moongate.core.faults import FailedError, Fault
from tests.recorded import json_suite, needs_data


def refused(data: bytes) -> tuple[str, str | None]:
    """The message and the member a body is refused with."""
    with pytest.raises(FailedError) as caught:
        RawBody(data)
    failure = caught.value.failure
    assert failure.fault is Fault.INVALID_REQUEST
    return failure.message, failure.param


def read(data: bytes) -> RawBody | None:
    """None for a body that is refused as it should be; anything else that is raised is a crash."""
    try:
        return RawBody(data)
    except FailedError as error:
        return None if error.failure.fault is Fault.INVALID_REQUEST else RawBody(b"")


def as_a_member(name: str, value: bytes) -> None:
    data = b'{"model":"kimi-k2.5","x":%b,"messages":[]}' % value
    body = read(data)
    if body is None:
        assert not name.startswith("y_"), name
        return
    assert not name.startswith("n_"), name
    assert body.data == data
    assert body.edit("model", b'"kimi-k2.6"')
    assert body.data == b'{"model":"kimi-k2.6","x":%b,"messages":[]}' % value.strip(b" \t\r\n"), name


@needs_data
def test_json_suite_as_the_value_of_a_member() -> None:
    assert len(json_suite()) > 300
    for name, value in json_suite().items():
        as_a_member(name, value)


@needs_data
def test_json_suite_as_a_whole_body_is_taken_or_refused() -> None:
    for name, text in json_suite().items():
        body = read(text)
        assert body is None or body.data == text, name


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a":"\xff"}', "not valid UTF-8 (byte 6)"),
        (b'{"a":"\xe4\xbd"}', "not valid UTF-8 (byte 6)"),
        (b'{"a":"\xed\xa0\x80"}', "not valid UTF-8 (byte 6)"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":-Infinity}', "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b'{"a":1}{', "not valid JSON"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":"\\ud800"}', "lone surrogate, \\ud800, at byte 6"),
        (b'{"a":"x\\uDFFFy"}', "lone surrogate, \\uDFFF, at byte 7"),
        (b'{"a":"\\ud83c\\ud83c\\udf19"}', "lone surrogate, \\ud83c, at byte 6"),
        (b'{"a":"\\ud83cx\\udf19"}', "lone surrogate, \\ud83c, at byte 6"),
        (b'{"a":"\\ud83c\\n"}', "lone surrogate, \\ud83c, at byte 6"),
        (b'{"a":"\\udf19\\ud83c"}', "lone surrogate, \\udf19, at byte 6"),
        (b'{"\\ud800":1}', "lone surrogate, \\ud800, at byte 2"),
        (b'{"a":"\\ud83c\\udf19","b":"\\udc00"}', "lone surrogate, \\udc00, at byte 25"),
        (b'{"a":"\\\\ud800" 1}', "expected"),
        (b'{"a":"\\ud83c\\udf19" 1}', "expected"),
    ],
)
def test_what_is_not_one_readable_object_is_refused_with_a_reason(data: bytes, told: str) -> None:
    assert told in refused(data)[0]


@pytest.mark.parametrize("text", ["\\ud83c\\udf19", "\\\\ud800", "\\uD7FF\\uE000", "你好", "\\u0000"])
def test_escapes_that_stand_for_characters_pass(text: str) -> None:
    data = f'{{"a":"{text}"}}'.encode()
    assert RawBody(data).data == data


@settings(deadline=None)
@given(st.text(st.characters(), max_size=6), st.booleans())
def test_a_body_is_refused_for_a_surrogate_exactly_when_no_text_could_hold_it(
    text: str, pretty: bool
) -> None:
    data = json.dumps({"a": text, "b": {text: 1}}, indent=1 if pretty else None).encode()
    lone = any(0xD800 <= ord(char) < 0xE000 for char in json.loads(data)["a"])
    if lone:
        assert "lone surrogate" in refused(data)[0]
    else:
        assert RawBody(data).data == data


@pytest.mark.parametrize(
    "form",
    [
        '{{"{0}":1,"{0}":1}}',
        '{{"{0}":1,"{0}":2}}',
        '{{"{0}":1, "a": 1, "{0}": 12}}',
        '{{"{0}":12,"{0}":1}}',
        '{{"a":[],"{0}":{{"{0}":1}},"b":"x","{0}":3}}',
        '{{ "{0}"\t:\n"x, y" , "z" : [1,"]"] ,"{0}" : "x, y" }}',
        '{{"{0}":null,"{1}":null}}',
        '{{"{1}":1,"{0}":2}}',
        '{{"{1}":1,"{1}":1}}',
    ],
)
def test_a_deciding_member_may_stand_once_however_it_is_spelled(form: str) -> None:
    for name in DECIDING:
        escaped = "".join(f"\\u{ord(char):04x}" if at % 2 else char for at, char in enumerate(name))
        message, param = refused(form.format(name, escaped).encode())
        assert param == name
        assert f"`{name}` is given more than once" in message


def test_the_members_that_decide() -> None:
    named = {"model", "stream", "stream_options", "messages", "tools", "n", "max_tokens"}
    assert named | {"max_completion_tokens", "thinking", "prompt_cache_key"} <= DECIDING


NAMES = st.sampled_from(["model", "n", "x", "", "a b", 'q"', "é", "月", "stream"])
VALUES: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 0, -12, 1e9, "", "a, b", '"}', "\\", "月", [], [1, "]"], {"model": {"n": []}}]
)
SPACES = st.sampled_from(["", "", " ", "\n  ", "\t\r\n"])


@st.composite
def pairs_and_text(draw: st.DrawFn) -> tuple[list[tuple[str, str]], str]:
    """Members, repeated or not, and an object that holds them, laid out at will."""
    pairs = draw(st.lists(st.tuples(NAMES, VALUES), max_size=6))
    spaces = draw(st.sampled_from([st.just(""), SPACES]))

    def gap() -> str:
        return draw(spaces)

    raw = [(name, json.dumps(value, ensure_ascii=draw(st.booleans()))) for name, value in pairs]
    inside = ",".join(
        f"{gap()}{json.dumps(name, ensure_ascii=draw(st.booleans()))}{gap()}:{gap()}{value}{gap()}"
        for name, value in raw
    )
    return raw, f"{gap()}{{{inside or gap()}}}{gap()}"


@settings(deadline=None, max_examples=200)
@given(pairs_and_text())
def test_any_layout_is_read_alike_and_repeats_are_found(made: tuple[list[tuple[str, str]], str]) -> None:
    pairs, text = made
    names = [name for name, _ in pairs]
    if any(names.count(name) > 1 for name in DECIDING):
        assert refused(text.encode())[1] in DECIDING
        return
    body = RawBody(text.encode())
    assert body.data == text.encode()
    assert sorted(body.items()) == sorted((name, value.encode()) for name, value in pairs)
    for name, value in dict(pairs).items():
        assert body.get(name) == value.encode()
        assert body.size(name) == len(value.encode())
        assert name in body


@settings(deadline=None, max_examples=150)
@given(pairs_and_text(), NAMES, st.none() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_an_edit_changes_one_member_and_no_other_byte(
    made: tuple[list[tuple[str, str]], str], name: str, raw: bytes | None
) -> None:
    pairs, text = made
    if any([name for name, _ in pairs].count(name) > 1 for name in DECIDING):
        return
    body = RawBody(text.encode())
    before = list(body.items())
    changed = body.edit(name, raw)
    assert changed == (dict(before).get(name) != raw)
    if not changed:
        assert body.data == text.encode()
        return
    again = RawBody(body.data)
    assert again.get(name) == raw
    kept = [pair for pair in before if pair[0] != name]
    assert sorted(pair for pair in again.items() if pair[0] != name) == sorted(kept)
    assert [found for found, _ in again.items()].count(name) == (raw is not None)


def test_an_edit_keeps_the_order_of_members() -> None:
    body = RawBody(b'{ "model" : "a", "x":1e3 ,"messages":[ {} ]}')
    body.edit("model", b'"b"')
    body.edit("thinking", b'{"type":"disabled"}')
    assert body.data == b'{"model":"b","x":1e3,"messages":[ {} ],"thinking":{"type":"disabled"}}'
    body.edit("x", None)
    assert body.data == b'{"model":"b","messages":[ {} ],"thinking":{"type":"disabled"}}'
    assert body.get("x") is None
    assert body.size("x") == 0
    assert "x" not in body


def test_editing_to_what_is_there_keeps_the_clients_bytes() -> None:
    data = b'{ "model":"a" , "x":1 }'
    body = RawBody(data)
    assert not body.edit("model", b'"a"')
    assert not body.edit("y", None)
    assert body.data is data


def test_numbers_keep_their_digits() -> None:
    body = RawBody(b'{"a":9007199254740993,"b":1.10,"c":1e999,"d":-0,"model":"m"}')
    body.edit("model", b'"n"')
    assert body.data == b'{"a":9007199254740993,"b":1.10,"c":1e999,"d":-0,"model":"n"}'


def test_a_copy_is_edited_apart() -> None:
    data = b'{"model":"a","x":1,"x":2}'
    body = RawBody(data)
    other = body.copy()
    assert other.data is data
    other.edit("model", b'"b"')
    other.edit("x", None)
    assert (body.data, other.data) == (data, b'{"model":"b"}')
    assert list(body.items()) == [("x", b"1"), ("model", b'"a"'), ("x", b"2")]
    part = RawBody(b'{"o":{"f":1}}').part("o")
    assert part is not None
    with pytest.raises(FailedError, match=r"`o[.]f`"):
        part.copy().flag("f")


def test_typed_reading() -> None:
    body = RawBody(b'{"s":"\\u6708","t":true,"f":false,"i":7,"z":null,"o":{"include_usage":true},"l":[]}')
    assert body.text("s") == "月"
    assert (body.flag("t"), body.flag("f")) == (True, False)
    assert body.whole("i") == 7
    for absent in ("z", "missing"):
        assert body.text(absent) is None
        assert body.flag(absent) is None
        assert body.whole(absent) is None
        assert body.part(absent) is None
    options = body.part("o")
    assert options is not None
    assert options.flag("include_usage") is True


@pytest.mark.parametrize(
    ("read", "name", "told"),
    [
        (RawBody.text, "i", "`i` must be a string."),
        (RawBody.flag, "s", "`s` must be true or false."),
        (RawBody.flag, "i", "`i` must be true or false."),
        (RawBody.whole, "s", "`s` must be a whole number."),
        (RawBody.whole, "r", "`r` must be a whole number."),
        (RawBody.whole, "t", "`t` must be a whole number."),
        (RawBody.part, "l", "`l` must be an object."),
        (RawBody.part, "s", "`s` must be an object."),
    ],
)
def test_a_member_of_another_type_is_refused_by_name(read: object, name: str, told: str) -> None:
    assert callable(read)
    with pytest.raises(FailedError) as caught:
        read(RawBody(b'{"s":"x","i":1,"r":1.5,"t":true,"l":[]}'), name)
    assert (caught.value.failure.message, caught.value.failure.param) == (told, name)


def test_a_member_inside_a_member_is_named_in_full() -> None:
    part = RawBody(b'{"stream_options":{"include_usage":"yes"}}').part("stream_options")
    assert part is not None
    with pytest.raises(FailedError) as caught:
        part.flag("include_usage")
    assert caught.value.failure.param == "stream_options.include_usage"


def test_other_repeated_members_travel_on() -> None:
    data = b'{"x":[1,{"]":"}"}],"y":2, "x" : "\\"," ,"x":3}'
    body = RawBody(data)
    assert body.get("x") == b"3"
    assert body.data == data
    body.edit("y", b"4")
    assert body.data == b'{"x":[1,{"]":"}"}],"x":"\\",","x":3,"y":4}'
    body.edit("x", b"5")
    assert body.data == b'{"x":5,"y":4}'


def test_a_copy_is_edited_alone() -> None:
    body = RawBody(b'{"model":"a","x":1,"x":2,"temperature":0}')
    copy = body.copy()
    assert copy.data is body.data
    assert copy.edit("model", b'"b"')
    assert copy.edit("x", b"3")
    assert copy.edit("temperature", None)
    assert copy.data == b'{"model":"b","x":3}'
    assert body.data == b'{"model":"a","x":1,"x":2,"temperature":0}'
    assert body.edit("y", b"1")
    assert copy.get("y") is None


def test_what_a_body_lacks() -> None:
    body = RawBody(b'{"model":"k","n":1}')
    assert body.lacks(frozenset(("stream", "stop")))
    assert not body.lacks(frozenset(("stream", "n")))
    assert body.lacks(frozenset())
