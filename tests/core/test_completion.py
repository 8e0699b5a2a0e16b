from typing import Any

import pytest

from moongate.core.completion import completed, default_targets, host_of, without_nulls


def whole(**values: object) -> dict[str, Any]:
    return completed(dict(values))


def test_null_means_the_default_of_known_settings_only() -> None:
    values: dict[str, object] = {
        "run": None,
        "unknown": None,
        "edge": {"trusted": None, "unknown": None, "body_bytes": 1},
        "drain": None,
        "targets": {"a": None, "b": {"key": None, "url": "u"}, "c": 5},
        "routes": {
            "r": {"targets": ["a", {"target": "b", "model": None}], "aliases": [None], "timeouts": None}
        },
        "log": 5,
    }
    assert without_nulls(values) == {
        "unknown": None,
        "edge": {"unknown": None, "body_bytes": 1},
        "targets": {"a": {}, "b": {"url": "u"}, "c": 5},
        "routes": {"r": {"targets": ["a", {"target": "b"}], "aliases": [None]}},
        "log": 5,
    }


@pytest.mark.parametrize(
    ("written", "run"),
    [({}, "./.moongate/run"), ({"state": "/s"}, "/s/run"), ({"state": "/s", "run": "/r"}, "/r")],
)
def test_run_is_in_the_state_directory_unless_written(written: dict[str, object], run: str) -> None:
    assert whole(**written)["run"] == run


@pytest.mark.parametrize("state", [5, "", "a\x00b"])
def test_nothing_follows_from_a_wrong_state(state: object) -> None:
    assert "run" not in whole(state=state)


def test_without_routes_each_of_moonshots_models_goes_to_every_target() -> None:
    values = whole(targets={"a": {}, "b": {}})
    k25 = values["routes"]["kimi-k2.5"]
    assert k25["targets"] == [{"model": "kimi-k2.5", "target": "a"}, {"model": "kimi-k2.5", "target": "b"}]
    assert k25["aliases"] == ["kimi-2.5", "kimi_2.5"]
    assert k25["successors"] == ["kimi-k2.6"]
    assert values["routes"]["kimi-k2.6"]["targets"][1] == {"model": "kimi-k2.6", "target": "b"}
    assert "kimi-k3" in values["routes"]


@pytest.mark.parametrize("targets", [5, {}, {"bad name": {}}])
def test_without_a_target_to_name_there_are_no_routes_to_write(targets: object) -> None:
    assert "routes" not in whole(targets=targets)


@pytest.mark.parametrize(
    ("url", "dialect", "currency"),
    [
        ("https://api.moonshot.cn/v1", "moonshot", "CNY"),
        ("https://API.moonshot.ai:443/v1", "moonshot", "USD"),
        ("http://vllm:8000/v1", "generic", "USD"),
        ("https://llm.example.cn/v1", "generic", "CNY"),
        (None, "generic", "USD"),
    ],
)
def test_dialect_and_currency_follow_the_host(url: object, dialect: str, currency: str) -> None:
    assert whole(targets={"a": {"url": url}})["targets"]["a"] == {
        "url": url,
        "account": "a",
        "dialect": dialect,
        "currency": currency,
    }


def test_what_a_target_says_itself_stays() -> None:
    target = {
        "url": "https://api.moonshot.ai/v1",
        "account": "org",
        "dialect": "generic",
        "currency": "CNY",
    }
    assert whole(targets={"a": dict(target)})["targets"]["a"] == target


def test_the_model_is_the_legs_own_else_the_targets_else_the_routes_else_its_name() -> None:
    targets = {"a": {"model": "of-target"}, "b": {}, "c": 5}
    legs = ["a", "b", {"target": "a", "model": "of-leg"}, "c", "gone", {"weight": 2}, 7]
    routes = {"named": {"targets": list(legs)}, "r": {"targets": list(legs), "model": "of-route"}, "odd": 5}
    made = whole(targets=targets, routes=routes)["routes"]
    models = [leg.get("model") if isinstance(leg, dict) else leg for leg in made["r"]["targets"]]
    assert models == ["of-target", "of-route", "of-leg", "of-route", "of-route", "of-route", 7]
    assert made["named"]["targets"][1] == {"model": "named", "target": "b"}
    assert made["odd"] == 5


def test_nothing_follows_from_wrong_names() -> None:
    made = whole(
        targets={"bad name": {}}, routes={"bad name": {"targets": ["x"]}, "r": {"targets": 5, "model": 5}}
    )
    assert made["targets"]["bad name"] == {"dialect": "generic", "currency": "USD"}
    assert made["routes"]["bad name"] == {"targets": [{"target": "x"}]}
    assert made["routes"]["r"] == {"targets": 5, "model": 5}
    assert whole(routes=5)["routes"] == 5


def test_a_preset_fills_what_is_not_written() -> None:
    def times(timeouts: object) -> Any:
        return whole(routes={"r": {"targets": [], "timeouts": timeouts}})["routes"]["r"]["timeouts"]

    interactive = times({"preset": "interactive", "connect": 1})
    assert interactive == {
        "preset": "interactive",
        "connect": 1,
        "tls": 10.0,
        "write": 15.0,
        "head": 120.0,
        "first_event": 120.0,
        "idle": 120.0,
    }
    assert times({"preset": "default"}) == {"preset": "default"}
    assert times({"preset": "unknown", "connect": 1}) == {"preset": "unknown", "connect": 1}
    assert times({"preset": 5}) == {"preset": 5}
    assert times({"connect": 1}) == {"connect": 1}
    assert times(5) == 5


def test_the_default_target_is_moonshot_with_the_key_of_the_environment() -> None:
    (target,) = default_targets().values()
    assert target == {
        "url": "https://api.moonshot.ai/v1",
        "key": "${env:MOONSHOT_API_KEY}",
        "dialect": "moonshot",
    }
    assert host_of(5) == ""
