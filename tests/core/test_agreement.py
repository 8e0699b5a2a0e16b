from dataclasses import replace
from typing import Any

import pytest

from moongate.core.addresses import Address, Url
from moongate.core.agreement import LONGEST_RUN, Disagreement, disagreements
from moongate.core.section import Price
from moongate.core.settings import Admin, Edge, RequestId, Route, RouteTarget, Settings, Target
from moongate.core.settings_kept import Idempotency

GOOD = Settings()


def said(settings: Settings, targets: list[str] | None = None) -> list[Disagreement]:
    return list(disagreements(settings, list(settings.targets) if targets is None else targets))


def route(*legs: str | RouteTarget, aliases: tuple[str, ...] = (), successors: tuple[str, ...] = ()) -> Route:
    places = tuple(leg if isinstance(leg, RouteTarget) else RouteTarget(leg, "m") for leg in legs)
    return Route(places, aliases, "m", successors)


def test_the_defaults_agree() -> None:
    assert said(GOOD) == []


def test_bodies_fit_into_what_is_held() -> None:
    (one,) = said(replace(GOOD, edge=Edge(body_bytes=2048, held_bytes=2047)))
    assert (one.path, one.other) == (("edge", "body_bytes"), ("edge", "held_bytes"))
    assert said(replace(GOOD, edge=Edge(body_bytes=2048, held_bytes=2048))) == []


def test_an_answer_fits_into_what_is_kept() -> None:
    (one,) = said(replace(GOOD, idempotency=Idempotency(answer_bytes=70_000, kept_bytes=69_999)))
    assert (one.path, one.other) == (("idempotency", "answer_bytes"), ("idempotency", "kept_bytes"))
    assert said(replace(GOOD, idempotency=Idempotency(answer_bytes=70_000, kept_bytes=70_000))) == []


def test_listeners_do_not_share_a_port_unless_the_kernel_chooses() -> None:
    (one,) = said(replace(GOOD, admin=Admin(GOOD.listen)))
    assert one.path == ("admin", "listen")
    any_port = Address("127.0.0.1", 0)
    assert said(replace(GOOD, listen=any_port, admin=Admin(any_port))) == []


def test_several_workers_cannot_count_calls_together() -> None:
    (one,) = said(replace(GOOD, workers=2, max_concurrent_requests=5))
    assert one.path == ("max_concurrent_requests",)
    assert said(replace(GOOD, workers=2)) == []
    assert said(replace(GOOD, max_concurrent_requests=5)) == []


def test_paths_of_sockets_are_short() -> None:
    assert said(replace(GOOD, run="r" * LONGEST_RUN)) == []
    (one,) = said(replace(GOOD, run="ü" * (LONGEST_RUN // 2) + "r"))
    assert one.path == ("run",)


@pytest.mark.parametrize("name", ["ca_file", "server_name"])
def test_what_is_for_tls_needs_https(name: str) -> None:
    changes: dict[str, Any] = {name: "x"}
    plain = replace(Target(Url("http", "h", 80, "")), **changes)
    (one,) = said(replace(GOOD, targets=dict(GOOD.targets) | {"p": plain}))
    assert (one.path, one.other) == (("targets", "p", name), ("targets", "p", "url"))
    secure = replace(plain, url=Url("https", "h", 443, ""))
    assert said(replace(GOOD, targets=dict(GOOD.targets) | {"p": secure})) == []


def test_a_gateway_has_a_route_and_a_route_a_target() -> None:
    assert [one.path for one in said(replace(GOOD, routes={}))] == [("routes",)]
    assert [one.path for one in said(replace(GOOD, routes={"r": route()}))] == [("routes", "r", "targets")]


def test_targets_of_routes_exist_and_stand_once() -> None:
    twice = (RouteTarget("kimi", "m"), RouteTarget("kimi", "n"), RouteTarget("kimi", "m"))
    settings = replace(GOOD, routes={"r": route("kimy", *twice)})
    missing, again = said(settings)
    assert missing.path == ("routes", "r", "targets", 0)
    assert missing.mend == 'did you mean "kimi"?'
    assert again.path == ("routes", "r", "targets", 3)
    assert [one.path for one in said(settings, ["kimi", "kimy"])] == [again.path]


def test_targets_that_are_not_known_are_not_missed() -> None:
    settings = replace(GOOD, routes={"r": route("anything")})
    assert list(disagreements(settings, None)) == []


def test_a_gateway_has_a_target() -> None:
    assert [one.path for one in said(GOOD, [])] == [("targets",)]


def test_successors_are_other_models() -> None:
    settings = replace(GOOD, routes={"r": route("kimi", successors=("a", "m", "a"))})
    assert [one.path[-1] for one in said(settings)] == [1, 2]


def test_a_name_means_one_route() -> None:
    routes = {
        "r": route("kimi", aliases=("s", "a", "r", "a")),
        "s": route("kimi", aliases=("a", "b")),
    }
    found = said(replace(GOOD, routes=routes))
    assert [one.path[1:] for one in found] == [
        ("r", "aliases", 0),
        ("r", "aliases", 2),
        ("r", "aliases", 3),
        ("s", "aliases", 0),
    ]
    assert found[3].problem == '"a" already means route r'


@pytest.mark.parametrize("header", ["Authorization", "content-length", "Host"])
def test_the_request_id_takes_no_header_that_means_something(header: str) -> None:
    (one,) = said(replace(GOOD, request_id=RequestId(("X-Ours", header))))
    assert one.path == ("request_id", "upstream_headers", 1)


def test_an_account_is_charged_in_one_currency() -> None:
    url = Url("https", "api.moonshot.ai", 443, "/v1")
    org = {"a": Target(url, account="org"), "b": Target(url, account="org", currency="CNY")}
    others = {"c": Target(url, account="c", currency="EUR")}
    (one,) = said(replace(GOOD, targets={**org, **others, "kimi": GOOD.targets["kimi"]}))
    assert (one.path, one.other) == (("targets", "b", "currency"), ("targets", "a", "currency"))
    assert one.problem == 'is CNY, but target "a" charges account "org" in USD'


def test_a_price_at_the_top_says_of_what_and_in_which_currency() -> None:
    rows = (Price(1, 2, model="m"), Price(1, 2, currency="USD"), Price(1, 2, model="m", currency="USD"))
    found = said(replace(GOOD, prices=rows))
    assert [(one.path, one.problem) for one in found] == [
        (("prices", 0), "needs `currency`"),
        (("prices", 1), "needs `model`"),
    ]


def test_a_targets_prices_are_in_its_currency() -> None:
    target = replace(GOOD.targets["kimi"], prices=(Price(1, 2), Price(1, 2, model="m", currency="CNY")))
    (one,) = said(replace(GOOD, targets={"kimi": target}))
    assert one.path == ("targets", "kimi", "prices", 1, "currency")


def test_a_price_stands_once_for_each_day_and_a_hit_is_no_dearer_than_a_miss() -> None:
    row = Price(5, 9, hit=6, model="m", currency="USD")
    later = replace(row, hit=5, since="2026-09-01")
    hit, twice = said(replace(GOOD, prices=(row, later, replace(row, hit=0, output=1))))
    assert (hit.path, hit.other) == (("prices", 0, "hit"), ("prices", 0, "miss"))
    assert twice.path == ("prices", 2)
    assert "two prices of m from 1970-01-01 on" in twice.problem
