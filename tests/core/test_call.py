"""The plain values that travel with a call."""

from hypothesis import given
from hypothesis import strategies as st

from moongate.core.body import RawBody
from moongate.core.call import Call, Principal, Usage

COUNTS = st.builds(Usage, *[st.integers(0, 1 << 40)] * 5)


@given(COUNTS, COUNTS, COUNTS)
def test_usage_adds_up_kind_by_kind(a: Usage, b: Usage, c: Usage) -> None:
    assert a.plus(Usage()) == a
    assert a.plus(b) == b.plus(a)
    assert a.plus(b).plus(c) == a.plus(b.plus(c))
    assert Usage(1, 2, 3, 4, 5).plus(Usage(10, 20, 30, 40, 50)) == Usage(11, 22, 33, 44, 55)


def test_calls_do_not_share_their_edits() -> None:
    def call() -> Call:
        return Call(
            call_id="c",
            request_id="r",
            principal=Principal("k", "acme"),
            user="",
            session="",
            route="kimi",
            model="kimi-k2.5",
            body=RawBody(b"{}"),
            stream=False,
            include_usage=False,
            arrived=0.0,
            created=0.0,
            deadline=1.0,
        )

    first, second = call(), call()
    first.route = "other"
    assert second.route == "kimi"
    assert first.principal.routes is None, "a key without a list may use every route"
