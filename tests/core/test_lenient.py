"""What is framed as one JSON value can be read, whatever is in it; what is cut or glued cannot."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moongate.core.lenient import DEEPEST, decode, mended
from tests.recorded import json_suite, needs_data

ANY = msgspec.json.Decoder()


def is_readable(text: bytes) -> bool:
    try:
        decode(ANY, text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":NaN,"b":[Infinity,-Infinity]}', {"a": None, "b": [None, None]}),
        (b'{"a":1e999,"b":-1.5E+400,"c":1e300,"d":0.1e-999}', {"a": None, "b": None, "c": 1e300, "d": 0.0}),
        (b"[%b,%b,NaN]" % (b"9" * 400, b"9" * 20), [None, int("9" * 20), None]),
        (b'{"a":' + b"9" * 5000 + b".5e3}", {"a": None}),
        (b'{"a":"NaN 1e999 \\"Infinity","NaN":1,"b":NaN}', {"a": 'NaN 1e999 "Infinity', "NaN": 1, "b": None}),
        (b'{"a":"x\xffy"}', {"a": "x\ufffdy"}),
        (b'{"a":"x\ny\x00z\t"}', {"a": "x y z "}),
        (b'{"a":"\\ud800","b":"\\udc00x","c":"\\ud83c\\udf19"}', {"a": "\ufffd", "b": "\ufffdx", "c": "🌙"}),
        (b'{"a":"\\ud83c\\ud83c\\udf19"}', {"a": "\ufffd🌙"}),
        (b'{"a":"\\\\ud800\\u0041"}', {"a": "\\ud800A"}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'{"a":1,"a":2,"b":NaN}', {"a": 2, "b": None}),
        (b'{"a":%b1%b,"b":2}' % (b"[" * 100_000, b"]" * 100_000), None),
        (b'{"a":%b1%b,"b":2}' % (b'{"c":' * 3000, b"}" * 3000), None),
        (b"NaN", None),
    ],
)
def test_one_value_is_read_without_what_is_no_json(text: bytes, value: object) -> None:
    found = decode(ANY, text)
    if value is not None:
        assert found == value
    elif isinstance(found, dict):
        assert found["b"] == 2, "what stands behind an absurdly deep value is read"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":NaN',
        b'{"a":NaN}}',
        b'{"a":NaN}{"b":1}',
        b'{"a":"NaN}',
        b'{"id":"chatcmpl-jQugNdata:{"id":"chatcmpl-iU6v","choices":[]}',
        b'{"id":"chatcmpl-jQugN{"id":"chatcmpl-iU6v","choices":[{"delta":{"content":"a"}}]}',
        b'{"a":nan}',
        b'{"a":xNaN}',
        b'{"a":NaNx}',
        b'{"a":+1}',
        b'{"a":01e999}',
        b"<html>NaN</html>",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 99_999,
        b"[" * 100_000 + b"]" * 100_001,
        b'{"a":"\\x"}',
    ],
)
def test_what_is_cut_or_glued_is_refused(text: bytes) -> None:
    assert not is_readable(text)


def test_levels_are_kept_up_to_the_deepest() -> None:
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"7,NaN" + b"]" * depth

    assert mended(nested(DEEPEST)) == nested(DEEPEST).replace(b"NaN", b"null")
    cut = mended(nested(DEEPEST + 1))
    assert cut == b"[" * DEEPEST + b"null" + b"]" * DEEPEST
    assert mended(b"[%b,%b,1]" % (nested(DEEPEST), nested(DEEPEST))).endswith(b",1]")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_good_json_is_not_touched(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({"v": value}, ensure_ascii=ascii_only, indent=indent).encode()
    assert json.loads(mended(text)) == json.loads(text)


@settings(deadline=None, max_examples=60)
@given(VALUES, st.data())
def test_no_cut_of_a_value_passes_for_the_whole(value: object, data: st.DataObject) -> None:
    text = json.dumps({"v": [value, float("nan")]}).encode()
    assert decode(ANY, text)
    at = data.draw(st.integers(0, len(text) - 1))
    assert not is_readable(text[:at])


@needs_data
def test_json_suite_never_crashes_and_good_files_are_read() -> None:
    assert [
        name for name, text in json_suite().items() if not is_readable(text) and name.startswith("y_")
    ] == []
