import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.addresses import Address, Base, Listening, Network, Url, is_loopback
from moongate.core.kinds import Kind, WrongError


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:65535", "::1", 65535),
        ("[::]:80", "::", 80),
        ("gateway.internal:80", "gateway.internal", 80),
        ("localhost:80", "localhost", 80),
    ],
)
def test_addresses_to_listen_on(written: str, host: str, port: int) -> None:
    address = Listening().parse(written)
    assert address == Address(host, port)
    assert str(address) == written


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("https://api.moonshot.ai/v1", Url("https", "api.moonshot.ai", 443, "/v1")),
        ("HTTP://Kimi.Example:8000/", Url("http", "kimi.example", 8000, "")),
        ("http://[::1]:9000/v1/", Url("http", "::1", 9000, "/v1")),
        ("http://10.0.0.7", Url("http", "10.0.0.7", 80, "")),
        ("https://h/a/b", Url("https", "h", 443, "/a/b")),
    ],
)
def test_bases_of_an_api(written: str, url: Url) -> None:
    assert Base().parse(written) == url


def test_a_url_knows_what_goes_on_the_wire() -> None:
    secure = Url("https", "api.moonshot.ai", 443, "/v1")
    assert secure.secure
    assert secure.authority == "api.moonshot.ai"
    assert str(secure) == "https://api.moonshot.ai/v1"
    plain = Url("http", "::1", 9000, "")
    assert not plain.secure
    assert plain.authority == "[::1]:9000"
    assert Url("http", "::1", 80, "").authority == "[::1]"


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (Listening(), "127.0.0.1"),
        (Listening(), ":8080"),
        (Listening(), "127.0.0.1:65536"),
        (Listening(), "127.0.0.256:80"),
        (Listening(), "[::g]:80"),
        (Listening(), "[1.2.3]:80"),
        (Listening(), "::1:80"),
        (Listening(), "a..b:80"),
        (Listening(), "-a:80"),
        (Listening(), "a" * 254 + ":80"),
        (Listening(), 8080),
        (Base(), "ftp://h/v1"),
        (Base(), "api.moonshot.ai/v1"),
        (Base(), "https://"),
        (Base(), "https://h:0/v1"),
        (Base(), "https://h:65536/v1"),
        (Base(), "https://999.1.1.1/v1"),
        (Base(), "https://h/v 1"),
        (Base(), 5),
        (Network(), "10.0.0.1/8"),
        (Network(), "10.0.0.0/33"),
        (Network(), "nginx"),
        (Network(), 10),
    ],
)
def test_what_is_no_place_is_refused(kind: Kind, written: object) -> None:
    with pytest.raises(WrongError) as caught:
        kind.parse(written)
    assert caught.value.mend.startswith("write ")


@pytest.mark.parametrize(
    "written", ["https://u:planted@h/v1", "https://h/v1?key=planted", "https://h/v1#planted"]
)
def test_a_url_that_may_hold_a_credential_is_not_repeated(written: str) -> None:
    with pytest.raises(WrongError) as caught:
        Base().parse(written)
    assert "planted" not in str(caught.value)


def test_networks_and_unix_sockets() -> None:
    assert Network().parse("10.0.0.0/8") == "10.0.0.0/8"
    assert Network().parse("192.0.2.7") == "192.0.2.7/32"
    assert Network().parse("2001:DB8::/32") == "2001:db8::/32"
    assert Network().parse("unix") == "unix"


def test_loopback_is_told_from_the_rest() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "127.evil.example", "1127.0.0.1")))


@pytest.mark.parametrize(
    ("kind", "good"),
    [(Listening(), "[::1]:80"), (Base(), "https://h/v1"), (Network(), "unix"), (Network(), "10.0.0.0/8")],
)
def test_schemas_take_what_the_parser_takes(kind: Kind, good: str) -> None:
    assert re.search(str(kind.schema()["pattern"]), good)


@given(st.text(alphabet=":/[]@?#.-abc019 ", max_size=20), st.sampled_from([Listening(), Base(), Network()]))
def test_any_text_is_a_place_or_a_mistake(text: str, kind: Kind) -> None:
    assert kind.takes(text) in (True, False)  # and nothing but `WrongError` was raised on the way


@given(
    st.from_regex(
        r"https?://[a-z]{1,9}(\.[a-z]{1,5})?(:[1-9][0-9]{0,3})?(/[a-z0-9]{1,4}){0,3}", fullmatch=True
    )
)
def test_a_url_is_read_back_as_it_is_written(text: str) -> None:
    url = Base().parse(text)
    assert Base().parse(str(url)) == url
