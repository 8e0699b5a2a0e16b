"""Headers and framing: nothing of the client's leaves, nothing of the account's comes back (CASES H1 to H9, F10)."""

import base64
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.wire.house import SIM_KEY, House
from tests.wire.parking import release
from tests.wire.raw import Raw

SETTINGS = """
edge: {body_bytes: 200KB, header_seconds: 0.5, body_seconds: 0.5, keep_alive_seconds: 1}
routes:
  kimi-k2.5: {aliases: [kimi-2.5], targets: [kimi]}
"""
MAY_LEAVE = {
    *("host", "authorization", "content-type", "content-length", "accept", "accept-encoding", "user-agent"),
    *("x-request-id", "x-kimi-request-id", "connection"),
}
MAY_COME_BACK = {
    *("content-type", "content-length", "transfer-encoding", "date", "connection", "cache-control"),
    *("x-request-id", "x-moongate-call-id", "x-moongate-conversation-id", "x-moongate-attempts"),
    *("x-moongate-model", "x-moongate-edits", "x-accel-buffering", "x-should-retry", "retry-after"),
    *("proxy-status", "www-authenticate"),
}
CHUNKED = "Transfer-Encoding: chunked"


def _sent(house: House) -> dict[str, str]:
    """Headers of the last request as it arrived upstream; none may be there twice."""
    pairs = [(name.lower(), value) for name, value in house.received()[-1]["headers"]]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def _head(house: House, *lines: str, key: str | None = None) -> bytes:
    given = ["POST /v1/chat/completions HTTP/1.1", "Host: moongate.test", *lines]
    if not any(line.lower().startswith("authorization") for line in lines):
        given.append(f"Authorization: Bearer {house.key if key is None else key}")
    return "\r\n".join(given).encode("latin-1") + b"\r\n\r\n"


def _chunks(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_no_secret_of_the_client_reaches_the_provider(house: House) -> None:
    secrets = {
        "x-api-key": "client-1",
        "api-key": "client-2",
        "x-goog-api-key": "client-3",
        "Cookie": "session=client-4",
        "X-Internal-Token": "client-5",
        "Proxy-Authorization": "Basic client-6",
        "X-Forwarded-For": "10.9.8.7",
        "X-User-Id": "client-7",
        "OpenAI-Organization": "client-8",
        "X-Stainless-Lang": "client-9",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "client-10",
        "TE": "trailers",
    }
    for stream in (False, True):
        assert house.ask(headers=secrets, stream=stream).status == 200
        sent = _sent(house)
        assert set(sent) <= MAY_LEAVE
        assert sent["authorization"] == f"Bearer {SIM_KEY}"
        assert "client-" not in json.dumps(sent)
        assert house.key not in json.dumps(sent)


def test_nothing_of_the_account_comes_back(house: House) -> None:
    for sim in (None, "rate_limit_rpm", "quota_exhausted", "unknown_fields", "big_headers", "html_200"):
        for stream in (False, True):
            answer = house.ask(sim, stream=stream)
            assert set(answer.headers) <= MAY_COME_BACK, answer.headers
            assert sum(len(name) + len(value) + 4 for name, value in answer.headers.items()) < 1000
            if sim == "quota_exhausted":
                release(house)


def test_an_edited_body_has_its_own_length(house: House) -> None:
    body = house.body().replace(b"kimi-k2.5", b"kimi-2.5")
    answer = house.post(body)
    assert answer.headers["x-moongate-edits"] == "model"
    assert answer.headers["x-moongate-model"] == "kimi-k2.5"
    sent = _sent(house)
    arrived = base64.b64decode(house.received()[-1]["body_base64"])
    assert json.loads(arrived) == json.loads(house.body())
    assert int(sent["content-length"]) == len(arrived) != len(body)
    assert "transfer-encoding" not in sent


def test_a_body_in_chunks_goes_on_with_its_length(house: House) -> None:
    body = house.body()
    with Raw(house.port) as raw:
        for size in (1, 7, 10_000):
            raw.send(_head(house, CHUNKED) + _chunks(body, size))
            assert raw.answer().status == 200
            sent = _sent(house)
            assert int(sent["content-length"]) == len(body)
            assert "transfer-encoding" not in sent
            assert base64.b64decode(house.received()[-1]["body_base64"]) == body


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5", "Content-Length: 5"],
        ["Content-Length: 5, 5"],
        ["Content-Length: +5"],
        ["Content-Length: 5", CHUNKED],
        [CHUNKED, "Transfer-Encoding: identity"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding : chunked"],
        ["Host: other.test", "Content-Length: 5"],
        ["X-A: 1\r\n folded", "Content-Length: 5"],
        ["X-A: \x00", "Content-Length: 5"],
        ["X-A: 1\n", "Content-Length: 5"],
    ],
    ids=lambda lines: lines[0][:24],
)
def test_doubtful_framing_is_refused_and_closed(house: House, lines: list[str]) -> None:
    behind = _head(house, "Content-Length: 2") + b"{}"
    with Raw(house.port) as raw:
        raw.send(_head(house, *lines) + b"hello" + behind)
        answer = raw.answer()
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
        assert answer.headers["connection"] == "close"
        assert raw.at_end
    assert house.received() == []


def test_100_continue_comes_at_once_and_stays_here(house: House) -> None:
    body = house.body(padding="x" * 5000)
    lines = (f"Content-Length: {len(body)}", "Expect: 100-continue")
    with Raw(house.port, seconds=3) as raw:
        raw.send(_head(house, *lines))
        assert raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.send(body)
        assert raw.answer().status == 200
    assert "expect" not in _sent(house)
    with Raw(house.port, seconds=3) as raw:
        raw.send(_head(house, *lines, key="mg_wrong"))
        assert raw.answer().status == 401
    with Raw(house.port, seconds=3) as raw:
        raw.send(_head(house, "Content-Length: 99999999", "Expect: 100-continue"))
        assert raw.answer().status == 413
    assert len(house.received()) == 1


def test_a_body_is_counted_while_it_comes_and_again_unpacked(house: House) -> None:
    large = house.body(padding="x" * 300_000)
    packed = gzip.compress(large)
    assert len(packed) < 10_000
    asked: list[tuple[list[str], bytes]] = [
        ([f"Content-Length: {len(large)}"], large),
        ([CHUNKED], _chunks(large, 50_000)),
        ([f"Content-Length: {len(packed)}", "Content-Encoding: gzip"], packed),
        ([CHUNKED, "Content-Encoding: gzip"], _chunks(packed, 100)),
    ]
    for lines, body in asked:
        with Raw(house.port) as raw:
            raw.send(_head(house, *lines) + body)
            answer = raw.answer()
        assert (answer.status, answer.error["code"]) == (413, "payload_too_large"), lines
        assert answer.headers["x-should-retry"] == "false"
    assert house.received() == []
    small = gzip.compress(house.body())
    assert house.post(small, headers={"Content-Encoding": "gzip"}).status == 200
    assert base64.b64decode(house.received()[-1]["body_base64"]) == house.body()
    assert "content-encoding" not in _sent(house)
    assert house.post(b"no gzip", headers={"Content-Encoding": "gzip"}).status == 400
    assert house.post(small, headers={"Content-Encoding": "br"}).status == 400


def test_headers_have_bounds_with_a_name(house: House) -> None:
    body = house.body()
    length = f"Content-Length: {len(body)}"
    token = "e" * 9200
    sent = [
        ([f"X-Jwt: {token}"], 200, ""),
        ([f"X-A-{at}: {'v' * 900}" for at in range(9)], 200, ""),
        ([f"X-Jwt: {'e' * 17_000}"], 431, "header_too_large"),
        ([f"X-A-{at}: {'v' * 9000}" for at in range(8)], 431, "header_too_large"),
        ([f"X-A-{at}: v" for at in range(200)], 431, "header_too_large"),
    ]
    for lines, status, code in sent:
        with Raw(house.port) as raw:
            raw.send(_head(house, length, *lines) + body)
            answer = raw.answer()
        assert answer.status == status, lines[0][:20]
        assert not code or answer.error["code"] == code
    with Raw(house.port) as raw:
        raw.send(_head(house, length, f"Authorization: Bearer {token}") + body)
        assert raw.answer().status == 401


def test_a_request_that_does_not_arrive_is_given_up(house: House) -> None:
    for begun in (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n",
        _head(house, "Content-Length: 99") + b"{",
    ):
        with Raw(house.port, seconds=5) as raw:
            raw.send(begun)
            answer = raw.answer()
            assert (answer.status, answer.error["code"]) == (408, "slow_request")
            assert answer.headers["x-should-retry"] == "true"
            assert raw.at_end
    with Raw(house.port, seconds=5) as raw:
        raw.post(house.body(), house.key)
        assert raw.answer().status == 200
        assert raw.at_end
    assert len(house.received()) == 1


def test_one_id_is_everywhere(house: House) -> None:
    faults = [None, "500", "rate_limit_rpm", "reset_mid_stream", "empty_200", "400"] * 4
    given: list[tuple[int, Any]] = list(enumerate(faults))

    def ask(asked: tuple[int, Any]) -> Any:
        at, fault = asked
        return house.ask(fault, stream=at % 2 == 1, headers={"X-Request-Id": f"trace:{at}/x=1"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, given))
    house.at_rest()
    logged = {line["call_id"]: line for line in house.logged()}
    upstream = [dict(one["headers"]) for one in house.received()]
    for (at, fault), answer in zip(given, answers, strict=True):
        wanted = f"trace:{at}/x=1"
        assert answer.headers["x-request-id"] == wanted
        record = house.record(answer.call_id)
        assert record["request_id"] == logged[answer.call_id]["request_id"] == wanted
        assert [sent["x-kimi-request-id"] for sent in upstream if sent["X-Request-Id"] == wanted] == [wanted]
        if record["code"]:
            assert answer.error["request_id"] == wanted, fault
    assert len({answer.call_id for answer in answers}) == len(answers)


def test_an_id_that_could_do_harm_is_made_anew(house: House) -> None:
    for bad in ("", "a b", "x" * 129, "ä", 'a"b', "<script>", "a\tb", "a;b"):
        answer = house.ask("400", headers={"X-Request-Id": bad.encode("latin-1")})  # type: ignore[dict-item]
        made = answer.headers["x-request-id"]
        assert made != bad
        assert made == answer.error["request_id"] == _sent(house)["x-request-id"]
        assert len(made) >= 16
    same = [house.ask(headers={"X-Request-Id": "not-unique"}) for _ in range(2)]
    assert {answer.headers["x-request-id"] for answer in same} == {"not-unique"}
    assert len({answer.call_id for answer in same}) == 2


def test_refusals_before_a_call_have_ids_too(house: House) -> None:
    answer = house.post(house.body(), headers={"Authorization": "Bearer mg_x", "X-Request-Id": "r-1"})
    assert (answer.status, answer.error["request_id"]) == (401, "r-1")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert house.post(house.body(), path="/v1/embeddings").error["code"] == "not_enabled"
    assert house.total("moongate_unauthenticated_total", fault="unauthenticated") >= 1


def test_calls_sent_ahead_are_answered_in_order(house: House) -> None:
    texts = [f"answer {at}" for at in range(6)]
    with Raw(house.port) as raw:
        for at, text in enumerate(texts):
            raw.post(
                house.body({"text": text, "first_token": 0.2 if at == 0 else 0}, stream=at % 2 == 1),
                house.key,
            )
        assert [raw.answer().text for _ in texts] == texts
        raw.send(
            b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
            + house.key.encode()
            + b"\r\n\r\n"
        )
        status, headers = raw.head()
        assert status == 200
        assert int(headers["content-length"]) > 0
        raw.post(house.body(), house.key, "Connection: close")
        assert raw.answer().status == 200
        assert raw.at_end
