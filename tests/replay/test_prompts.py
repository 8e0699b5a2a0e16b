"""Prompts: as long as asked for by the simulator's own count, and alike exactly as far as their blocks are."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from moongate.replay.prompts import BLOCK_BYTES, Script, block
from moongate.replay.trace import Arrival
from moongate.sim.ask import decode, read

SCRIPT = Script("kimi-k2.5")
ids = st.lists(st.integers(0, 10**12), min_size=1, max_size=6)


def arrival(blocks: list[int], tokens: int | None = None) -> Arrival:
    return Arrival(0.0, 4 + 512 * len(blocks) if tokens is None else tokens, 7, blocks)


def alike_for(one: Sequence[int], other: Sequence[int]) -> int:
    """For how many items two sequences are the same."""
    both = min(len(one), len(other))
    return next((at for at in range(both) if one[at] != other[at]), both)


@given(ids, st.integers(1, 4000))
def test_a_simulated_kimi_counts_the_tokens_that_were_asked_for(blocks: list[int], tokens: int) -> None:
    body = SCRIPT.body(arrival(blocks, tokens))
    assert read(decode(body)).tokens == max(tokens, 5)


@given(ids, ids, ids)
def test_prompts_are_alike_as_far_as_their_blocks_are(
    same: list[int], one: list[int], other: list[int]
) -> None:
    first, second = [*same, *one], [*same, *other]
    shared = alike_for(first, second)
    alike = alike_for(SCRIPT.prompt(arrival(first)), SCRIPT.prompt(arrival(second)))
    if shared < min(len(first), len(second)):
        assert (
            shared * BLOCK_BYTES <= alike < shared * BLOCK_BYTES + 16
        )  # parted within the number of the next
    else:
        assert alike == shared * BLOCK_BYTES


@given(ids, st.integers(5, 4000), st.integers(5, 4000))
def test_a_shorter_prompt_of_the_same_blocks_is_the_beginning_of_a_longer(
    blocks: list[int], one: int, other: int
) -> None:
    short, long = sorted((one, other))
    assert SCRIPT.prompt(arrival(blocks, long)).startswith(SCRIPT.prompt(arrival(blocks, short)))


@given(st.integers(0, 10**18), st.integers(1, 5000))
def test_a_block_has_its_size_and_is_text_that_json_takes_as_it_is(number: int, size: int) -> None:
    text = block(number, size)
    assert len(text) == size
    assert json.dumps(text.decode()).encode() == b'"%b"' % text


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_no_two_blocks_are_alike(number: int, further: int) -> None:
    assert block(number, 16) != block(number + further, 16)
    assert block(number, 16) != block(number + 65_536, 16)


def test_a_request_asks_for_a_stream_its_usage_and_at_most_the_length() -> None:
    body = json.loads(SCRIPT.body(arrival([1])))
    assert {name: body[name] for name in body if name != "messages"} == {
        "model": "kimi-k2.5",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
    }


def test_only_a_simulated_kimi_is_told_the_exact_length() -> None:
    assert "sim" not in json.loads(SCRIPT.body(arrival([1])))
    told = json.loads(Script('a "quoted" model', simulated=True).body(arrival([1])))
    assert (told["sim"], told["model"]) == ({"output_tokens": 7}, 'a "quoted" model')


def test_an_answer_of_no_tokens_is_asked_for_as_one() -> None:
    assert json.loads(SCRIPT.body(Arrival(0.0, 10, 0, [1])))["max_tokens"] == 1


def test_another_seed_leaves_nothing_alike() -> None:
    prompts = [Script("m", seed=seed).prompt(arrival([5, 6])) for seed in ("", "a", "b")]
    assert len({prompt[:8] for prompt in prompts}) == 3
    assert Script("m", seed="a").prompt(arrival([5, 6])) == prompts[1]
    assert len({len(prompt) for prompt in prompts}) == 1
