import pytest

from moongate.core.catalogue import every_setting
from moongate.core.later import LATER, not_yet

KNOWN = {path for path, _ in every_setting()}


@pytest.mark.parametrize("later", LATER, ids=lambda later: "/".join(later.path))
def test_each_is_refused_with_its_reason_and_is_no_setting(later: object) -> None:
    path = later.path  # type: ignore[attr-defined]
    value: object = "x"
    for step in reversed(path):
        value = {"name" if step == "*" else step: value}
    assert isinstance(value, dict)
    found = list(not_yet(value))
    assert found == [(tuple("name" if step == "*" else step for step in path), later.reason)]  # type: ignore[attr-defined]
    assert later.works or ".".join(path) not in KNOWN  # type: ignore[attr-defined]


def test_a_part_is_named_once_for_all_that_is_in_it() -> None:
    found = [path for path, _ in not_yet({"cache": {"a": 1, "b": 2}, "routes": {"x": {"cache": None}}})]
    assert found == [("cache",), ("routes", "x", "cache")]


def test_what_works_of_a_part_to_come_is_taken() -> None:
    legs = [{"target": "a", "weight": 1}, {"target": "b", "weight": 2}, "c"]
    found = [path for path, _ in not_yet({"routes": {"r": {"targets": legs}}})]
    assert found == [("routes", "r", "targets", 1, "weight")]


def test_what_works_today_is_not_refused() -> None:
    assert list(not_yet({"routes": {"x": {"on_abandon": "cancel"}}, "listen": "x"})) == []


def test_parts_that_later_issues_bring_are_all_there() -> None:
    tops = {later.path[0] for later in LATER if len(later.path) == 1}
    promised = "cache limits queue redis local faq canary redact auth postgres consul otel"
    assert set(promised.split()) | {"packing", "shadow"} <= tops
