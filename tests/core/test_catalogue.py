import json
from typing import Any

from moongate.core.catalogue import Setting, all_settings, every_setting, json_schema, settings_at
from moongate.core.settings import Settings

ALL = dict(every_setting())


def names(*path: str | int) -> list[str]:
    return [each.name for each in settings_at(path)]


def test_every_setting_says_what_it_means_and_how_it_is_written() -> None:
    assert len(ALL) > 60
    for path, setting in ALL.items():
        assert setting.note.endswith("."), path
        assert (setting.kind is None) == bool(setting.within), path


def test_paths_lead_through_names_and_lists() -> None:
    assert {"listen", "edge", "edge.body_bytes", "targets.*.url", "routes.*.targets[].weight"} <= set(ALL)
    assert ALL["targets.*.url"].required
    assert not ALL["targets.*.key"].required
    assert ALL["listen"].default == "127.0.0.1:8080"
    assert ALL["request_id.upstream_headers"].default == ["X-Request-Id", "x-kimi-request-id"]
    assert ALL["edge"].default is None
    assert ALL["routes.*.targets"].bare


def test_the_settings_around_a_path_are_known() -> None:
    assert names()[:2] == ["listen", "workers"]
    assert "body_bytes" in names("edge")
    assert "url" in names("targets", "kimi")
    assert "weight" in names("routes", "kimi", "targets", 0)
    assert "connect" in names("routes", "kimi", "timeouts")
    assert names("targets") == []
    assert names("listen") == []
    assert names("nothing", "here") == []


def check(schema: dict[str, Any], level: tuple[Setting, ...]) -> None:
    assert list(schema["properties"]) == [each.name for each in level]
    assert schema["additionalProperties"] is False


def test_the_schema_has_each_setting_and_takes_no_other() -> None:
    schema: Any = json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    check(schema, all_settings())
    top = schema["properties"]
    check(top["edge"], settings_at(("edge",)))
    target = top["targets"]["additionalProperties"]
    check(target, settings_at(("targets", "x")))
    assert target["required"] == ["url"]
    assert {"type": "null"} in target["properties"]["key"]["anyOf"]
    assert "propertyNames" in top["targets"]
    leg = top["routes"]["additionalProperties"]["properties"]["targets"]["items"]
    assert leg["anyOf"][0]["type"] == "string"
    check(leg["anyOf"][1], settings_at(("routes", "x", "targets", 0)))


def test_defaults_in_the_schema_are_those_of_the_tree() -> None:
    top: Any = json_schema()["properties"]
    assert top["workers"]["default"] == Settings().workers
    assert top["edge"]["properties"]["trusted"]["default"] == []
    assert "default" not in top["max_concurrent_requests"]
    assert "default" not in top["targets"]["additionalProperties"]["properties"]["account"]
    assert json.loads(json.dumps(top)) == top
