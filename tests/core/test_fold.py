"""Chunks fold into one completion: text, tool calls kept apart, the last usage, and how it ended."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moongate.core.call import Usage
from moongate.core.faults import Fault
from moongate.core.fold import CHUNK, Chunk, Fold, error_in, escaped, read_usage, unescaped
from moongate.core.plain import MOST_TOKENS
from moongate.core.surface import Answer, ToolCall


def chunk(**members: Any) -> Chunk:
    return msgspec.json.decode(json.dumps(members), type=Chunk)


def delta(finish: object = None, index: object = 0, **members: Any) -> Chunk:
    return chunk(choices=[{"index": index, "delta": members, "finish_reason": finish}])


def tool(arguments: object = None, **members: Any) -> dict[str, Any]:
    """A tool call's delta; `name` goes where it belongs."""
    function = {"arguments": arguments} | ({"name": members.pop("name")} if "name" in members else {})
    return {"function": function} | members


def folded(*chunks: Chunk) -> Answer:
    fold = Fold()
    for one in chunks:
        fold.take(one)
    return fold.answer()


def calls(*deltas: dict[str, Any]) -> list[tuple[int, str, str, str]]:
    """(index, id, name, arguments) of the tool calls that these deltas make, one delta a chunk."""
    found = folded(*(delta(tool_calls=[one]) for one in deltas)).tool_calls
    return [(call.index, call.id, call.name, call.arguments) for call in found]


def test_text_and_reasoning_come_together_in_order() -> None:
    answer = folded(
        delta(role="assistant", content=""),
        delta(reasoning_content="Let ", content=None),
        delta(reasoning="me see"),
        delta(content="你好"),
        delta(content=' "\n', reasoning_content="!", reasoning="ignored: both names, one thought"),
        delta(content="🌙", finish="stop"),
    )
    assert (answer.text, answer.reasoning, answer.finish) == ('你好 "\n🌙', "Let me see!", "stop")


def test_the_first_name_given_holds() -> None:
    answer = folded(
        chunk(id="", model="", created=0, choices=[]),
        chunk(id="chatcmpl-A", model="kimi-k2.5", created=7, system_fingerprint="fpv0_a", choices=[]),
        chunk(id="chatcmpl-A", model="other", created=8, system_fingerprint="fpv0_b", choices=None),
    )
    assert (answer.id, answer.model, answer.created, answer.fingerprint) == (
        "chatcmpl-A",
        "kimi-k2.5",
        7,
        "fpv0_a",
    )


def test_members_of_an_unknown_type_are_let_be() -> None:
    answer = folded(
        chunk(
            id=5,
            model=None,
            created="now",
            system_fingerprint=[],
            choices=[{}, {"index": "x", "delta": None}],
        ),
        delta(content=["part"], reasoning_content=7, tool_calls=None),
        delta(tool_calls=[{"index": 0, "function": None, "id": 5, "type": None}]),
        delta(tool_calls=[{"index": 0, "function": {"name": 1, "arguments": {}}}]),
    )
    assert answer == Answer(tool_calls=[ToolCall(0)], choices=1)


@pytest.mark.parametrize(
    ("reasons", "finish"),
    [
        ([None], ""),
        ([""], ""),
        (["stop"], "stop"),
        ([None, "tool_calls", None], "tool_calls"),
        (["length", "stop"], "stop"),
        (["a_reason_of_tomorrow"], "a_reason_of_tomorrow"),
    ],
)
def test_how_it_ended(reasons: list[str | None], finish: str) -> None:
    fold = Fold()
    for reason in reasons:
        fold.take(delta(reason))
    assert fold.answer().finish == finish
    assert fold.complete == bool(finish)


def test_an_answer_of_several_choices_is_complete_when_all_are() -> None:
    fold = Fold()
    assert not fold.complete
    fold.take(delta(content="first", index=0))
    fold.take(delta(content="second", index=1))
    fold.take(delta("stop", index=0))
    assert not fold.complete
    assert fold.answer().finish == "", "one choice is still under way"
    fold.take(delta("length", index=1))
    answer = fold.answer()
    assert (answer.text, answer.finish, answer.choices) == ("first", "stop", 2)


def test_a_whole_message_folds_like_its_deltas() -> None:
    message = {
        "content": "a",
        "reasoning_content": "b",
        "tool_calls": [tool("{}", id="t:0", name="t", type="function")],
    }
    whole = folded(chunk(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}]))
    assert whole == Answer(
        text="a",
        reasoning="b",
        finish="tool_calls",
        tool_calls=[ToolCall(0, "t:0", "function", "t", "{}")],
        choices=1,
    )


def test_calls_of_a_whole_message_stay_apart_without_index_and_id() -> None:
    message = {"tool_calls": [tool("{}", id="", name="one"), tool("[]", name="two")]}
    found = folded(chunk(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}]))
    assert [(call.index, call.name, call.arguments) for call in found.tool_calls] == [
        (0, "one", "{}"),
        (1, "two", "[]"),
    ]


def test_tool_calls_are_put_together_by_index() -> None:
    assert calls(
        tool("", index=0, id="get:0", name="get", type="function"),
        tool("", index=1, id="get:1", name="get"),
        tool('{"a":', index=0),
        tool('{"b":', index=1),
        tool("2}", index=1),
        tool("1}", index=0),
    ) == [(0, "get:0", "get", '{"a":1}'), (1, "get:1", "get", '{"b":2}')]


def test_without_an_index_the_id_tells_tool_calls_apart() -> None:
    assert calls(
        tool("{", id="a", name="f"),
        tool("[", id="b", name="g"),
        tool("}", id="a"),
        tool("]", id="b"),
    ) == [(0, "a", "f", "{}"), (1, "b", "g", "[]")]


def test_without_index_and_id_a_delta_goes_on_with_the_last_call() -> None:
    assert calls(tool("{", id="a", name="f"), tool("1", name="f"), tool("}"), tool("[]", id="b")) == [
        (0, "a", "f", "{1}"),
        (1, "b", "", "[]"),
    ]
    assert calls(tool("{}")) == [(0, "", "", "{}")]


def test_an_index_met_again_with_another_id_is_another_call() -> None:
    assert calls(
        tool("{", index=0, id="a", name="f"),
        tool("}", index=0),
        tool("[", index=0, id="b", name="g"),
        tool("]", index=0),
    ) == [(0, "a", "f", "{}"), (1, "b", "g", "[]")]


def test_an_id_repeated_in_every_delta_and_an_id_that_comes_late_are_one_call() -> None:
    assert calls(tool("{", index=2, id="a", name="f"), tool("}", index=2, id="a", name="f")) == [
        (2, "a", "f", "{}")
    ]
    assert calls(tool("{", index=0, name="f"), tool("}", index=0, id="a")) == [(0, "a", "f", "{}")]


def test_every_call_gets_an_index_of_its_own() -> None:
    found = calls(
        tool("1", id="a"), tool("2", index=0, id="b"), tool("3", index=1, id="c"), tool("4", index=True)
    )
    assert [index for index, *_ in found] == [0, 1, 2]
    assert [arguments for *_, arguments in found] == ["1", "2", "34"]


def test_the_kind_of_tool_call_is_kept() -> None:
    answer = folded(delta(tool_calls=[tool("{}", id="w", name="$web_search", type="builtin_function")]))
    assert answer.tool_calls[0].kind == "builtin_function"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_however_deltas_of_parallel_calls_are_interleaved_each_call_is_itself(
    made: list[tuple[str, str]], dice: Any, by_index: bool
) -> None:
    pieces: list[list[dict[str, Any]]] = []
    for at, (name, arguments) in enumerate(made):
        key = {"index": at} if by_index else {"id": f"c:{at}"}
        cut = dice.randint(0, len(arguments))
        pieces.append(
            [tool(arguments[:cut], name=f"f{name}", **key | {"id": f"c:{at}"}), tool(arguments[cut:], **key)]
        )
    order = [piece for pair in pieces for piece in pair[:1]]
    rest = [pair[1] for pair in pieces]
    dice.shuffle(rest)
    assert calls(*order, *rest) == [(at, f"c:{at}", f"f{name}", text) for at, (name, text) in enumerate(made)]


def test_the_last_usage_holds_wherever_it_stands() -> None:
    early, late = ({"prompt_tokens": 8, "completion_tokens": n, "total_tokens": 8 + n} for n in (1, 2))
    in_choice = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "usage": early}])
    on_top = chunk(choices=[], usage=late)
    assert folded(in_choice).usage == Usage(8, 1)
    assert folded(on_top).usage == Usage(8, 2)
    assert folded(in_choice, on_top).usage == Usage(8, 2), "never added"
    assert folded(on_top, in_choice).usage == Usage(8, 1)
    assert folded(in_choice, chunk(choices=[], usage=None), chunk(usage={})).usage == Usage(8, 1)
    both = chunk(choices=[{"index": 0, "usage": early}], usage=late)
    assert folded(both).usage == Usage(8, 2)
    assert folded(delta(content="a")).usage is None


def test_usage_may_be_taken_without_the_rest() -> None:
    fold = Fold()
    fold.meter(
        chunk(choices=[{"index": 0, "delta": {"content": "not passed on"}}], usage={"prompt_tokens": 1})
    )
    answer = fold.answer()
    assert (answer.text, answer.usage, answer.usage_suspect) == ("", Usage(1), True)


GOOD = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        ({}, Usage(10, 7)),
        ({"total_tokens": None}, Usage(10, 7)),
        ({"cached_tokens": 4}, Usage(10, 7, 4)),
        ({"prompt_tokens_details": {"cached_tokens": 4}}, Usage(10, 7, 4)),
        ({"cached_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(10, 7, 4)),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, Usage(10, 7)),
        ({"prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 2}}, Usage(10, 7, 10, 0, 2)),
        ({"completion_tokens_details": {"reasoning_tokens": 7, "other": "x"}}, Usage(10, 7, 0, 7)),
        ({"reasoning_tokens": 5, "cost": 0.1}, Usage(10, 7, 0, 5)),
    ],
)
def test_usage_by_kind(more: dict[str, object], usage: Usage) -> None:
    assert read_usage(GOOD | more) == (usage, False)


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        ({"prompt_tokens": -10}, Usage(0, 7)),
        ({"completion_tokens": -1, "total_tokens": 9}, Usage(10, 0)),
        ({"prompt_tokens": None, "total_tokens": 7}, Usage(0, 7)),
        ({"completion_tokens": "7", "total_tokens": 10}, Usage(10, 0)),
        ({"prompt_tokens": 10.0, "total_tokens": 7}, Usage(0, 7)),
        ({"completion_tokens": True, "total_tokens": 10}, Usage(10, 0)),
        ({"prompt_tokens": MOST_TOKENS + 1, "total_tokens": 7}, Usage(0, 7)),
        ({"total_tokens": 18}, Usage(10, 7)),
        ({"total_tokens": "17"}, Usage(10, 7)),
        ({"cached_tokens": 11}, Usage(10, 7, 11)),
        ({"cached_tokens": -1}, Usage(10, 7)),
        ({"reasoning_tokens": 8}, Usage(10, 7, 0, 8)),
        ({"prompt_tokens_details": 4}, Usage(10, 7)),
        ({"completion_tokens_details": [1]}, Usage(10, 7)),
    ],
)
def test_figures_that_are_no_counts_or_contradict_each_other_are_suspect(
    more: dict[str, object], usage: Usage
) -> None:
    assert read_usage(GOOD | more) == (usage, True)


@pytest.mark.parametrize("given", [7, "17", [1], True])
def test_a_usage_that_is_no_object_is_none_and_suspect(given: object) -> None:
    assert read_usage(given) == (None, True)


def test_the_largest_figure_passes() -> None:
    assert read_usage({"prompt_tokens": MOST_TOKENS, "completion_tokens": 0}) == (Usage(MOST_TOKENS), False)


def test_a_later_good_usage_clears_the_suspicion() -> None:
    answer = folded(chunk(usage={"prompt_tokens": -1, "completion_tokens": 1}), chunk(usage=GOOD))
    assert (answer.usage, answer.usage_suspect) == (Usage(10, 7), False)


@settings(deadline=None)
@given(st.lists(st.text(), max_size=6))
def test_pieces_kept_escaped_are_the_text_they_stand_for(pieces: list[str]) -> None:
    assert unescaped(b"".join(escaped(piece) for piece in pieces)) == "".join(pieces)


def test_a_character_cut_into_two_deltas_is_whole_again_and_half_of_one_is_replaced() -> None:
    assert unescaped(b"\\ud83c" + b"\\udf19") == "🌙"
    assert unescaped(bytearray(b"a\\ud83c")) == "a\ufffd"
    assert unescaped(b"\xe4\xbd") == "\ufffd"


@pytest.mark.parametrize(
    ("known", "given", "foreign"),
    [
        ("A", "B", True),
        ("A", "A", False),
        ("A", "", False),
        ("A", None, False),
        ("", "B", False),
        ("A", 5, False),
    ],
)
def test_a_chunk_of_another_completion_is_known_by_its_id(known: str, given: object, foreign: bool) -> None:
    fold = Fold()
    fold.take(chunk(id=known))
    assert fold.is_foreign(chunk(id=given)) is foreign


@pytest.mark.parametrize(
    ("text", "fault", "asked"),
    [
        (b'{"choices":[]}', None, None),
        (b'{"error":null,"object":"chat.completion"}', None, None),
        (b'{"error":{"message":"m"}}', Fault.KIMI_REJECTED, b'{"error":{"message":"m"}}'),
        (
            b'{"object":"error","message":"m"}',
            Fault.KIMI_REJECTED,
            b'{"error":{"object":"error","message":"m"}}',
        ),
        (b'{"choices":[{"finish_reason":"stop"},{"finish_reason":"error"}]}', Fault.KIMI_SERVER_ERROR, None),
    ],
)
def test_an_error_inside_a_200_is_for_the_dialect_to_name(
    text: bytes, fault: Fault | None, asked: bytes | None
) -> None:
    seen: list[tuple[int, bytes]] = []

    def classify(status: int, body: bytes) -> Fault:
        seen.append((status, body))
        return Fault.KIMI_REJECTED

    assert error_in(CHUNK.decode(text), text, classify) is fault
    assert seen == ([(200, asked)] if asked else [])
