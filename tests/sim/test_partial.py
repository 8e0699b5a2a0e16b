"""Partial Mode: an answer that was cut goes on with the text that it would have had."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moongate.sim.ask import decode
from moongate.sim.chat import compose
from moongate.sim.config import Config
from moongate.sim.models import live
from moongate.sim.rules import judge
from tests.sim.world import World, run

OFF = {"type": "disabled"}


def ask(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def continued(members: dict[str, Any], prefix: str, reasoning: str) -> tuple[str, str]:
    """Text and finish reason of a continuation, decided without a socket."""
    last = {"role": "assistant", "content": prefix, "partial": True, "reasoning_content": reasoning}
    body = {**members, "messages": [*members["messages"], last]}
    asked = judge(decode(json.dumps(body).encode()), live(Config().as_of)["kimi-k2.5"])
    choice = compose(asked, "moon").choices[0]
    return "".join(choice.content), choice.finish


@given(st.sampled_from(["hello", "你好"]), st.floats(0, 1), st.booleans())
def test_partial_mode_continues_the_very_text_at_every_cut(words: str, where: float, thinks: bool) -> None:
    members: dict[str, Any] = {"model": "kimi-k2.5", "messages": ask(words)}
    if not thinks:
        members["thinking"] = OFF
    asked = judge(decode(json.dumps(members).encode()), live(Config().as_of)["kimi-k2.5"])
    whole = "".join(compose(asked, "moon").choices[0].content)
    cut = max(1, int(where * len(whole)))
    rest, finish = continued(members, whole[:cut], "thought")
    assert whole[:cut] + rest == whole
    assert finish == "stop"


def test_partial_mode_over_the_wire_excludes_the_prefix_and_counts_only_what_is_new() -> None:
    async def story(world: World) -> None:
        whole = (await world.chat()).json()
        message, used = whole["choices"][0]["message"], whole["usage"]["completion_tokens"]
        cut = len(message["content"]) // 2
        last = {
            "role": "assistant",
            "content": message["content"][:cut],
            "reasoning_content": message["reasoning_content"],
            "partial": True,
        }
        stream = await world.chat(messages=[*ask("hello"), last], stream=True)
        assert message["content"][:cut] + stream.text() == message["content"]
        assert stream.text("reasoning_content") == ""
        assert stream.objects()[-1]["choices"][0]["usage"]["completion_tokens"] < used
        assert (await world.book())[-1]["partial"]

    run(story)


def test_partial_mode_continues_a_thought_when_no_word_was_said() -> None:
    async def story(world: World) -> None:
        message = (await world.chat()).json()["choices"][0]["message"]
        thought = message["reasoning_content"]
        last = {"role": "assistant", "content": "", "reasoning_content": thought[:20], "partial": True}
        rest = (await world.chat(messages=[*ask("hello"), last])).json()["choices"][0]["message"]
        assert thought[:20] + rest["reasoning_content"] == thought
        assert rest["content"] == message["content"]

    run(story)


def test_a_prefix_that_was_never_said_is_continued_all_the_same() -> None:
    async def story(world: World) -> None:
        last = {"role": "assistant", "content": "No such words", "partial": True}
        first = (await world.chat(messages=[*ask("hello"), last])).text()
        assert first
        assert (await world.chat(messages=[*ask("hello"), last])).text() == first

    run(story)


def test_a_cut_answer_and_its_continuation_make_the_tokens_of_the_whole() -> None:
    async def story(world: World) -> None:
        whole = (await world.chat(thinking=OFF)).json()
        part = (await world.chat(thinking=OFF, max_tokens=10)).json()
        text = part["choices"][0]["message"]["content"]
        last = {"role": "assistant", "content": text, "partial": True}
        rest = (await world.chat(thinking=OFF, messages=[*ask("hello"), last])).json()
        assert text + rest["choices"][0]["message"]["content"] == whole["choices"][0]["message"]["content"]
        used = [one["usage"]["completion_tokens"] for one in (part, rest, whole)]
        assert used[0] + used[1] == used[2]

    run(story)
