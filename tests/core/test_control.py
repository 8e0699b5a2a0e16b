import hashlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moongate.core.control import Control, KeyEntry, Parked, digest_of

KEY = "mg_" + "a" * 43
DEMO = "mg_demo-" + "b" * 43


def document(**changes: Any) -> Control:
    entry = KeyEntry("k_1", "acme", "web", ("kimi-k2.5",), 5.0, **changes)
    return Control(3, {digest_of(KEY): entry}, {"kimi": Parked(7.0, "no balance")}, {"local": "on"})


def test_a_key_opens_with_its_own_text_only() -> None:
    control = document()
    found = control.find(KEY, loopback=False)
    assert found is not None
    assert found.tenant == "acme"
    assert control.find(KEY + "a", loopback=True) is None
    assert control.find(digest_of(KEY), loopback=True) is None
    assert control.find("", loopback=True) is None


def test_a_revoked_key_opens_nothing() -> None:
    assert document(revoked=9.0).find(KEY, loopback=True) is None
    assert document(revoked=0.0).find(KEY, loopback=True) is None


def test_a_demo_key_opens_on_loopback_only() -> None:
    control = document(demo=True)
    assert control.find(KEY, loopback=False) is None
    assert control.find(KEY, loopback=True) is not None


def test_the_document_travels_whole_and_without_keys() -> None:
    control = document()
    assert Control.from_json(control.to_json()) == control
    assert KEY.encode() not in control.to_json()
    assert Control.from_json(b"{}") == Control()


def test_only_a_sha_256_is_kept() -> None:
    assert digest_of(KEY) == hashlib.sha256(KEY.encode()).hexdigest()


@given(st.binary(max_size=60))
def test_any_header_bytes_can_be_asked_for(raw: bytes) -> None:
    assert document().find(raw.decode("utf-8", "surrogateescape"), loopback=True) is None
    assert document().find(raw.decode("latin-1"), loopback=True) is None
