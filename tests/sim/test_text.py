"""Words, keys, and values that fit schemas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.sim.schema import flaw, value_for
from moongate.sim.text import after_prefix, count, cut, derived, generate, is_chinese, key_of

KEYS = st.integers(0, 2**64 - 1)


@given(KEYS, st.integers(0, 200), st.integers(0, 200), st.booleans())
def test_a_shorter_text_is_the_beginning_of_a_longer_one(
    key: int, short: int, more: int, chinese: bool
) -> None:
    long = generate(key, short + more, chinese=chinese)
    assert generate(key, short, chinese=chinese) == long[:short]
    assert all(long)


@given(KEYS, st.integers(1, 60), st.booleans(), st.data())
def test_what_follows_a_prefix_completes_it(
    key: int, tokens: int, chinese: bool, data: st.DataObject
) -> None:
    pieces = generate(key, tokens, chinese=chinese)
    text = "".join(pieces)
    at = data.draw(st.integers(0, len(text)))
    rest = after_prefix(pieces, text[:at])
    assert rest is not None
    assert text[:at] + "".join(rest) == text
    assert all(rest)
    assert after_prefix(pieces, text[:at] + "\x00") is None


def test_different_keys_say_different_things() -> None:
    texts = {"".join(generate(key_of(b"%d" % number), 30, chinese=False)) for number in range(2000)}
    assert len(texts) == 2000


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_a_key_depends_on_every_part_and_boundary(left: list[bytes], right: list[bytes]) -> None:
    assert (key_of(*left) == key_of(*right)) is (left == right)


def test_derived_keys_differ_from_each_other() -> None:
    assert len({derived(key, part) for key in range(50) for part in ("", "a", "b")}) == 150


def test_counting_and_cutting() -> None:
    assert [count(text) for text in ("", "a", "abcd", "abcde", "月亮")] == [0, 1, 1, 2, 2]
    assert cut("abcdefghij") == ["abcd", "efgh", "ij"]
    assert is_chinese("x" * 1000 + "月")
    assert not is_chinese("naïve")


SCHEMAS: list[Any] = [
    {"type": "string", "maxLength": 3},
    {"type": "string", "minLength": 60},
    {"type": "number", "minimum": 5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 3},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3},
    {"anyOf": [{"type": "null"}, {"type": "string"}]},
    {"const": 7},
    {"enum": ["x", 2]},
    {"type": ["integer", "null"]},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
@given(key=KEYS)
def test_a_value_fits_its_schema(schema: Any, key: int) -> None:
    value = value_for(schema, key)
    assert fits(value, schema, schema)
    assert value_for(schema, key) == value


def fits(value: Any, schema: Any, root: Any) -> bool:
    """A small validator of its own, for what the schemas above use."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "const" in schema:
        return bool(value == schema["const"])
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(fits(value, one, root) for one in schema["anyOf"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    names: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "number": (int, float),
        "integer": (int,),
        "array": (list,),
        "boolean": (bool,),
        "object": (dict,),
    }
    if not any(
        (kind == "null" and value is None) or isinstance(value, names.get(kind, ())) for kind in kinds
    ):
        return False
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**6))
    if isinstance(value, list):
        return bool(len(value) >= schema.get("minItems", 0)) and all(
            fits(v, schema["items"], root) for v in value
        )
    if isinstance(value, dict):
        return all(fits(value[name], child, root) for name, child in schema["properties"].items())
    if isinstance(value, bool) or value is None:
        return True
    low = schema.get("minimum", schema.get("exclusiveMinimum", value - 1) + 1)
    return bool(low <= value <= schema.get("maximum", value))


def test_a_schema_without_an_end_has_a_value_and_a_flaw_only_when_it_is_too_deep() -> None:
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert isinstance(value_for(endless, 1), dict)
    assert flaw(endless, "", 0) is None
    deep: Any = {"type": "string"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    assert flaw(deep, "", 0) is not None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "type 'strin' is not supported"),
        ({"type": "array", "items": [{}]}, "tuple items are not supported"),
        ({"oneOf": []}, "oneOf is not supported"),
        ({"type": "object", "properties": {"a": 1}}, "schema must be an object"),
        ({"type": "object", "additionalProperties": {}}, "type is not defined"),
        ({"anyOf": [{}]}, "type is not defined"),
    ],
)
def test_flaws_are_found_wherever_they_are(schema: Any, reason: str) -> None:
    found = flaw({"type": "object", "properties": {"p": schema}}, "", 0)
    assert found is not None
    assert found[1] == reason
    assert found[0].startswith("/properties/p")
