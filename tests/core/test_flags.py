import pytest

from moongate.core.flags import FLAGS, with_flags
from moongate.core.mistakes import Place
from moongate.core.places import Written, written


def flagged(text: str, **flags: str) -> Written:
    page = written(text, "m")
    with_flags(page, {f"--{name.replace('_', '-')}": value for name, value in flags.items()})
    return page


def test_flags_win_over_the_file_and_say_where_they_stand() -> None:
    page = flagged("state: a\nworkers: 1\n", state="5", workers="2", max_concurrent_requests="x", run="r")
    assert page.values == {"state": "5", "workers": 2, "max_concurrent_requests": "x", "run": "r"}
    assert page.place(("workers",)) == Place("--workers")
    page.add(("workers",), "p", "m", at_key=True)
    assert str(page.mistakes[0]) == "--workers: workers: p; m"


def test_an_empty_number_is_not_taken_for_no_flag() -> None:
    assert flagged("", workers="").values == {"workers": ""}


@pytest.mark.parametrize(
    ("text", "target"),
    [("", "kimi"), ("targets: 5", "kimi"), ("targets: {a: {}}", "a"), ("targets: {a: {}, kimi: {}}", "kimi")],
)
def test_the_api_url_goes_to_the_target_that_can_be_meant(text: str, target: str) -> None:
    page = flagged(text, kimi_api_url="http://h/v1")
    targets = page.values["targets"]
    assert isinstance(targets, dict)
    assert targets[target]["url"] == "http://h/v1"


def test_the_api_url_of_several_targets_is_refused() -> None:
    page = flagged("targets: {a: {}, b: {}}", kimi_api_url="http://h/v1")
    assert str(page.mistakes[0]).startswith("--kimi-api-url: targets: there are several targets")
    assert page.values == {"targets": {"a": {}, "b": {}}}


def test_the_described_flags_are_all_there() -> None:
    described = (
        "listen-addr kimi-api-url cache-capacity max-concurrent-requests redis-url kimi-max-gpu-concurrency"
    )
    assert {f"--{name}" for name in f"{described} state run workers".split()} == set(FLAGS)
