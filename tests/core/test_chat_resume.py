"""Two parts of an answer read as one: what the client sees, and what is folded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.call import Usage
from moongate.core.chat_resume import ResumedReader
from moongate.core.faults import Fault
from moongate.core.sse import events, parse
from moongate.core.surface import Answer, StreamReader
from tests.core.streams import DONE, FINISH, USAGE, chunk, cuts, data, raw, read, reader, text, usage_chunk

BEFORE = Answer(id="chatcmpl-first", model="kimi-k2.5", created=7, text="Hello ", reasoning="Hm. ", choices=1)
USED = Usage(input=5, output=4, reasoning=1)


def resumed(
    before: Answer = BEFORE, used: Usage = USED, *, times: int = 1, strip: bool = False
) -> ResumedReader:
    return ResumedReader(reader(strip_usage=strip), before, used, times)


def chunks(out: bytes) -> list[dict[str, Any]]:
    """What a client reads, without the end marker."""
    return [json.loads(said) for raw in events(out) if (said := parse(raw).data) and said != b"[DONE]"]


def test_ids_model_and_time_are_those_of_the_first_part() -> None:
    found = read([text("world") + FINISH + DONE], resumed())
    assert found.out.endswith(DONE)
    assert found.done
    assert {(one["id"], one["model"], one["created"]) for one in chunks(found.out)} == {
        ("chatcmpl-first", "kimi-k2.5", 7)
    }
    assert (found.answer.text, found.answer.reasoning, found.answer.finish) == ("Hello world", "Hm. ", "stop")
    assert (found.answer.id, found.answer.created) == ("chatcmpl-first", 7)


def test_the_answer_is_not_opened_a_second_time() -> None:
    sent = chunks(read([text("world") + FINISH + DONE], resumed()).out)
    assert not any("role" in choice["delta"] for one in sent for choice in one["choices"])
    assert [choice["delta"] for one in sent for choice in one["choices"]] == [{"content": "world"}, {}]


def test_a_role_beside_words_goes_and_the_words_stay() -> None:
    stream = data(chunk(role="assistant", content="world")) + FINISH + DONE
    assert chunks(read([stream], resumed()).out)[0]["choices"][0]["delta"] == {"content": "world"}


def test_an_answer_with_nothing_left_to_say_still_ends() -> None:
    stream = data(chunk("stop", role="assistant", content="")) + DONE
    sent = chunks(read([stream], resumed()).out)
    assert [one["choices"][0]["finish_reason"] for one in sent] == ["stop"]


def test_the_last_chunk_says_how_often_it_was_resumed() -> None:
    stream = text("world") + FINISH + data(usage_chunk()) + DONE
    *words, finish, usage = chunks(read([stream], resumed(times=3)).out)
    assert all("moongate" not in one for one in words)
    assert finish["moongate"] == usage["moongate"] == {"resumed": 3}


@pytest.mark.parametrize("place", ["inside the choice", "a chunk of its own"])
def test_usage_covers_all_parts(place: str) -> None:
    told = USAGE | {
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2, "x": 1},
    }
    end = (
        data(chunk("stop", usage=told)) if place == "inside the choice" else FINISH + data(usage_chunk(told))
    )
    found = read([text("world") + end + DONE], resumed())
    last = chunks(found.out)[-1]
    shown = last["usage"] if "usage" in last else last["choices"][0]["usage"]
    assert shown == {
        "prompt_tokens": 5,
        "completion_tokens": 15,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3, "x": 1},
    }
    assert found.answer.usage == Usage(input=5, output=15, reasoning=3)


def test_details_are_added_where_only_the_first_part_has_them() -> None:
    plain = {"prompt_tokens": 8, "completion_tokens": 11, "total_tokens": 19, "cached_tokens": 8}
    used = Usage(input=5, output=4, cached=3, reasoning=1)
    shown = chunks(read([FINISH + data(usage_chunk(plain)) + DONE], resumed(used=used)).out)[-1]["usage"]
    assert shown["cached_tokens"] == 3
    assert shown["completion_tokens_details"] == {"reasoning_tokens": 1}
    bare = {"prompt_tokens": 8, "completion_tokens": 11, "total_tokens": 19}
    found = resumed(used=Usage(input=5, output=4))
    assert chunks(read([FINISH + data(usage_chunk(bare)) + DONE], found).out)[-1]["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 15,
        "total_tokens": 20,
    }


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 1}])
def test_usage_that_counts_nothing_stays_as_it_is(usage: object) -> None:
    one = raw({"id": "chatcmpl-A", "choices": [], "usage": usage})
    assert chunks(read([FINISH + data(one) + DONE], resumed()).out)[-1].get("usage") == usage


def test_usage_that_the_client_did_not_ask_for_is_withheld() -> None:
    found = read([text("world") + FINISH + data(usage_chunk()) + DONE], resumed(strip=True))
    assert all("usage" not in one for one in chunks(found.out))
    assert found.answer.usage is not None


def test_other_members_keep_their_bytes() -> None:
    one = b'{"id":"chatcmpl-A","x":9007199254740993,"choices":[{"index":0,"delta":{"content":"a","y":1.50}}]}'
    found = read([data(one) + FINISH + DONE], resumed())
    assert b'"x":9007199254740993' in found.out
    assert b'"y":1.50' in found.out


def test_what_cannot_be_edited_goes_on_as_it_came() -> None:
    odd = b'{"id":"chatcmpl-A","choices":[{"index":0,"delta":{"content":"a"},"p":NaN}]}'
    found = read([data(odd) + FINISH + DONE], resumed())
    assert data(odd) in found.out


def test_comments_and_chunks_without_choices_pass() -> None:
    found = read([b": hi\n\n" + data(b'{"id":"chatcmpl-A","note":1}') + FINISH + DONE], resumed())
    assert found.out.startswith(b": hi\n\n")
    assert chunks(found.out)[0] == {"id": "chatcmpl-first", "note": 1}


def test_a_second_break_is_told_with_what_came_until_then() -> None:
    by = resumed()
    found = read([text("wor") + data(b'{"error":{"message":"overloaded"}}')], by)
    assert found.failure is not None
    assert found.failure.fault is Fault.KIMI_ENGINE_OVERLOADED
    assert (found.answer.text, found.answer.finish) == ("Hello wor", "")
    assert by.own().text == "wor"
    assert found.answer.usage is None


def test_a_part_whose_first_one_told_no_names_keeps_its_own() -> None:
    found = read([text("x") + FINISH + DONE], resumed(before=Answer(text="y", choices=1)))
    assert {one["id"] for one in chunks(found.out)} == {"chatcmpl-A"}
    assert found.answer.id == "chatcmpl-A"


@given(st.data())
def test_however_often_and_wherever_it_breaks_the_text_is_whole(drawn: st.DataObject) -> None:
    """A model that goes on where it was cut, over up to six parts cut between any two events."""
    words = drawn.draw(st.lists(st.text(min_size=1), min_size=1, max_size=12))
    at, times, sent, used = 0, 0, b"", Usage(input=3)
    before: Answer | None = None
    while True:
        by: StreamReader = reader() if before is None else resumed(before, used, times=times)
        rest = words[at:]
        stop = drawn.draw(st.integers(0, len(rest))) if times < 5 else len(rest)
        whole = stop == len(rest)
        stream = text(*rest[:stop]) + (FINISH + data(usage_chunk()) + DONE if whole else b"")
        found = read(cuts(stream, *drawn.draw(st.lists(st.integers(0, len(stream)), max_size=4))), by)
        sent += found.out
        if whole:
            break
        before, at, times = found.answer, at + stop, times + 1
        used = used.plus(Usage(output=1))
    got = [choice["delta"].get("content", "") for one in chunks(sent) for choice in one["choices"]]
    assert "".join(got) == "".join(words) == found.answer.text
    assert chunks(sent)[-1]["usage"]["completion_tokens"] == 11 + times
    assert sent.count(b'"role"') == 1
