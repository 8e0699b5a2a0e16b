from moongate.core.mistakes import Mistake, Place, SettingsError, dotted, known_instead


def test_a_mistake_reads_as_place_path_problem_and_mend() -> None:
    mistake = Mistake(Place("m.yaml", 3, 5), "edge.body_bytes", '"1XB" is not a size', "write bytes")
    assert str(mistake) == 'm.yaml:3:5: edge.body_bytes: "1XB" is not a size; write bytes'
    assert str(Mistake(Place("--workers"), "", "no", "yes")) == "--workers: no; yes"


def test_mistakes_come_in_the_order_of_the_file() -> None:
    made = [
        Mistake(Place("m", line, column), str((line, column)), "p", "m")
        for line, column in [(2, 1), (1, 9), (1, 2)]
    ]
    error = SettingsError(made)
    assert [mistake.path for mistake in error.mistakes] == ["(1, 2)", "(1, 9)", "(2, 1)"]
    assert str(error).count("\n") == 2


def test_paths_read_as_people_write_them() -> None:
    assert dotted(("routes", "kimi-k2.5", "targets", 0, "weight")) == "routes.kimi-k2.5.targets[0].weight"
    assert dotted(()) == ""


def test_the_nearest_known_name_is_offered_else_all() -> None:
    known = ["body_bytes", "body_seconds", "listen"]
    assert known_instead("Body-Byte", known) == 'did you mean "body_bytes"?'
    assert known_instead("zzz", known) == "known here: body_bytes, body_seconds, listen"
    assert known_instead("zzz", []) == "leave it out"
