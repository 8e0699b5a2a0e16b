"""A stream that breaks is continued: its client can tell by nothing but the mark in the last chunk."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.answer import Answer
from tests.wire.house import House, lived_in

HOSTS: list[dict[str, Any]] = [
    {"name": "kimi"},
    {"name": "other"},
    {"name": "vllm", "face": "vllm", "models": ["moonshotai/Kimi-K2.5"]},
    {"name": "sglang", "face": "sglang", "models": ["moonshotai/Kimi-K2.5"]},
]
SETTINGS = """\
routes:
  kimi-k2.5: {targets: [kimi], resumes: 5}
  vllm: {model: moonshotai/Kimi-K2.5, targets: [vllm], resumes: 5}
  sglang: {model: moonshotai/Kimi-K2.5, targets: [sglang], resumes: 5}
  two: {model: kimi-k2.5, targets: [kimi, other], resumes: 5}
  never: {model: kimi-k2.5, targets: [kimi]}
"""
TEXTS = {
    "words": "",
    "repeats": "ha ha ha ha ha | a | b |\n|---|---|\n| a | b |\n```py\nx = x + x\nx = x + x\n```\nha ha",
    "emoji": '月🌙月🌙亮亮 \\ "quoted" \\n \U0001f468\u200d\U0001f469\u200d\U0001f467 ok',
}


@pytest.fixture(scope="module")
def abode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with lived_in(Path(tmp_path_factory.mktemp("resume")), SETTINGS, HOSTS) as house:
        yield house


@pytest.fixture
def house(abode: House) -> House:
    abode.begin()
    return abode


def ask(
    house: House, route: str = "kimi-k2.5", *breaks: int, sim: dict[str, Any] | None = None, **more: Any
) -> Answer:
    """One stream; each of `breaks` cuts one attempt after so many events with tokens."""
    house.tell_sim("DELETE", "/_sim/script")
    rules = [{"fault": f"reset_mid_stream;after={after}", "skip": 0, "times": 1} for after in breaks]
    if rules:
        house.tell_sim("POST", "/_sim/script", {"rules": rules})
    steer = {"reasoning_tokens": 6, "output_tokens": 18} | (sim or {})
    return house.ask(steer, stream=True, model=route, **({"stream_options": {"include_usage": True}} | more))


def chunks(answer: Answer) -> list[dict[str, Any]]:
    said = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(one) for one in said if one != b"[DONE]"]


def parts(answer: Answer) -> tuple[str, str]:
    """Thinking and words, as a client puts them together."""
    deltas = [choice["delta"] for one in chunks(answer) for choice in one.get("choices", [])]
    thinking = "".join(delta.get("reasoning_content") or delta.get("reasoning") or "" for delta in deltas)
    return thinking, "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("route", ["kimi-k2.5", "vllm", "sglang"])
@pytest.mark.parametrize("kind", TEXTS)
def test_at_every_cut_the_text_is_that_of_the_uncut_answer(house: House, route: str, kind: str) -> None:
    sim = {"text": TEXTS[kind]} if TEXTS[kind] else {}
    whole = ask(house, route, sim=sim)
    assert whole.status == 200
    thought = 6
    events = sum(
        1 for one in chunks(whole) for c in one["choices"] if c["delta"] and "role" not in c["delta"]
    )
    assert events > 10
    for after in range(1, events):
        answer = ask(house, route, after, sim=sim)
        if after <= thought and route != "kimi-k2.5":
            assert b"kimi_" in answer.body, "thinking can be continued on Moonshot's platform only"
            continue
        assert parts(answer) == parts(whole), after
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in answer.body


def test_ids_model_roles_and_the_mark_are_of_one_piece(house: House) -> None:
    answer = ask(house, "kimi-k2.5", 9)
    seen = chunks(answer)
    assert len({one["id"] for one in seen}) == len({one["model"] for one in seen}) == 1
    roles = [c["delta"]["role"] for one in seen for c in one["choices"] if "role" in c["delta"]]
    assert roles == ["assistant"]
    assert [one["moongate"] for one in seen if "moongate" in one][-1] == {"resumed": 1}
    finishes = [c["finish_reason"] for one in seen for c in one["choices"] if c["finish_reason"]]
    assert finishes == ["stop"]


def test_both_attempts_are_in_the_ledger_and_the_usage_covers_them(house: House) -> None:
    answer = ask(house, "kimi-k2.5", 9)
    record = house.record(answer.headers["x-moongate-call-id"])
    assert record["outcome"] == "completed"
    first, second = record["attempts"]
    assert (first["state"], second["state"]) == ("settled_est", "settled")
    assert "resume" in json.loads(record["edits"]) if isinstance(record["edits"], str) else record["edits"]
    usage = chunks(answer)[-1]["usage"]
    assert usage["prompt_tokens"] == first["input"]
    assert usage["completion_tokens"] == first["output"] + second["output"]
    assert [one["partial"] for one in house.executions()] == [False, True]


@pytest.mark.parametrize("breaks", [(3, 4), (9, 1, 2), (1, 1, 1, 1, 1), (2, 7, 1, 3)])
def test_it_may_break_again_and_again(house: House, breaks: tuple[int, ...]) -> None:
    whole = ask(house)
    answer = ask(house, "kimi-k2.5", *breaks)
    assert parts(answer) == parts(whole)
    assert chunks(answer)[-1]["moongate"] == {"resumed": len(breaks)}
    assert len(house.executions()) == 2 + len(breaks)


def test_a_sixth_break_is_told(house: House) -> None:
    answer = ask(house, "kimi-k2.5", 1, 1, 1, 1, 1, 1)
    assert b'"code":"kimi_stream_truncated"' in answer.body
    assert b"[DONE]" not in answer.body


def test_another_host_goes_on_where_the_first_one_died(house: House) -> None:
    whole = ask(house, "two")
    house.tell_sim("DELETE", "/_sim/script")
    rules = [
        {"fault": "reset_mid_stream;after=9", "times": 1},
        {"fault": "503", "times": 1},
    ]
    house.tell_sim("POST", "/_sim/script", {"rules": rules})
    answer = house.ask(
        {"reasoning_tokens": 6, "output_tokens": 18},
        stream=True,
        model="two",
        stream_options={"include_usage": True},
    )
    assert parts(answer) == parts(whole)
    record = house.record(answer.headers["x-moongate-call-id"])
    assert [attempt["target"] for attempt in record["attempts"]] == ["kimi", "kimi", "other"]
    assert [attempt["state"] for attempt in record["attempts"]] == ["settled_est", "released", "settled"]


@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["xyz"]},
        {"response_format": {"type": "json_object"}},
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Once", "partial": True},
            ]
        },
    ],
)
def test_what_would_not_fit_together_ends_with_an_honest_error(house: House, more: dict[str, Any]) -> None:
    answer = ask(house, "kimi-k2.5", 8, **more)
    assert b'"code":"kimi_stream_truncated"' in answer.body
    assert b"[DONE]" not in answer.body
    record = house.record(answer.headers["x-moongate-call-id"])
    assert (record["outcome"], len(record["attempts"])) == ("truncated", 1)
    assert "not resumed" in record["detail"]


def test_it_is_off_by_route_and_by_header(house: House) -> None:
    assert b'"error"' in ask(house, "never", 9).body
    house.tell_sim("DELETE", "/_sim/script")
    house.tell_sim("POST", "/_sim/script", {"rules": [{"fault": "reset_mid_stream;after=9", "times": 1}]})
    answer = house.post(house.body({}, stream=True), headers={"X-Moongate-Resume": "off"})
    assert b'"error"' in answer.body
    assert len(house.executions()) == 2


def test_what_may_have_been_paid_is_not_asked_for_twice(house: House) -> None:
    house.tell_sim(
        "POST",
        "/_sim/script",
        {
            "rules": [
                {"fault": "reset_mid_stream;after=9", "times": 1},
                {"fault": "reset_before_head", "times": 1},
            ]
        },
    )
    answer = house.ask({"reasoning_tokens": 6, "output_tokens": 18}, stream=True)
    assert b'"error"' in answer.body
    record = house.record(answer.headers["x-moongate-call-id"])
    assert [attempt["state"] for attempt in record["attempts"]] == ["settled_est", "ambiguous"]
