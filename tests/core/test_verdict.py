from moongate.core.completion import completed
from moongate.core.mistakes import Mistake
from moongate.core.places import Written, written
from moongate.core.settings import Settings
from moongate.core.verdict import checked


def judged(text: str) -> tuple[Settings, Written]:
    page = written(text, "m")
    page.values = completed(page.values)
    return checked(page), page


def only(text: str) -> Mistake:
    _, page = judged(text)
    (mistake,) = page.mistakes
    return mistake


def test_good_values_become_the_tree() -> None:
    settings, page = judged("workers: 2\nedge: {body_bytes: 64KB}\n")
    assert page.mistakes == []
    assert (settings.workers, settings.edge.body_bytes) == (2, 65536)


def test_a_wrong_value_is_told_and_its_default_taken() -> None:
    settings, page = judged("workers: 0\ndrain: {grace_seconds: 5m}\n")
    assert [mistake.path for mistake in page.mistakes] == ["workers"]
    assert (settings.workers, settings.drain.grace_seconds) == (1, 300.0)


def test_an_unknown_setting_is_told_at_its_key_with_the_nearest() -> None:
    mistake = only("edge:\n  body_byte: 1\n")
    assert (mistake.place.line, mistake.place.column) == (2, 3)
    assert (mistake.path, mistake.mend) == ("edge.body_byte", 'did you mean "body_bytes"?')


def test_what_must_be_written_is_missed_where_it_should_stand() -> None:
    mistake = only("targets:\n  kimi: {}\n")
    assert str(mistake).startswith("m:2:3: targets.kimi: needs `url`; write `url`: Base of")


def test_a_bad_name_is_told_once() -> None:
    assert only("targets:\n  bad name: {url: 'http://h'}\n").path == "targets.bad name"
    assert only("routes: {bad name: {targets: [kimi]}}\n").path == "routes.bad name"


def test_shapes_are_told_as_what_they_should_be() -> None:
    assert only("edge: 5").mend.startswith("write its settings below")
    assert only("targets: [a]").problem == "a list is not a mapping"
    assert only("targets: {kimi: x}").problem == '"x" is not a mapping'
    assert only("edge: {trusted: unix}").mend == "write a list: [one, another]"
    assert only("routes: {r: {targets: [[kimi]]}}").mend == "write a name, or `{target: NAME}`"


def test_all_mistakes_of_a_list_are_told_at_their_own_place() -> None:
    _, page = judged("edge:\n  trusted: [x, unix, y, z]\n")
    assert [mistake.place.column for mistake in page.mistakes] == [13, 22, 25]
    assert page.as_written(("edge", "trusted", 0)) == ("edge", "trusted", 1)


def test_several_mistakes_in_one_entry_do_not_hide_each_other() -> None:
    text = "routes:\n  r: {targets: [{weight: 0, extra: 1}, {target: kimi}], tries: 0}\n"
    settings, page = judged(text)
    assert sorted(mistake.path for mistake in page.mistakes) == [
        "routes.r.targets[0]",
        "routes.r.targets[0].extra",
        "routes.r.targets[0].weight",
        "routes.r.tries",
    ]
    assert [leg.target for leg in settings.routes["r"].targets] == ["kimi"]
