import pytest

from moongate.core.kinds import WrongError
from moongate.core.secret import Reference, Referred, Secret, is_reference, reference


def test_a_secret_shows_itself_only_when_asked_for_its_text() -> None:
    secret = Secret("sk-planted")
    shown = f"{secret} {secret!r} {secret!s} {[secret]} {{'key': {secret}}} %s" % secret
    assert "planted" not in shown
    assert "***" in shown
    assert secret.text == "sk-planted"


def test_references_name_an_environment_variable_or_a_file() -> None:
    assert reference("${env:KIMI_KEY}") == Reference("env", "KIMI_KEY")
    assert reference("${file:/run/kimi key}") == Reference("file", "/run/kimi key")


@pytest.mark.parametrize(
    "written", ["sk-planted", "x${env:A}", "${env:}", "${vault:A}", "${env:A}${env:B}", 5, None]
)
def test_anything_else_is_refused_without_being_repeated(written: object) -> None:
    with pytest.raises(WrongError) as caught:
        reference(written)
    assert "planted" not in str(caught.value)
    assert "${env:NAME}" in caught.value.mend


def test_a_reference_is_found_inside_a_text() -> None:
    assert is_reference("https://${env:HOST}/v1")
    assert not is_reference("$env:HOST")
    assert not is_reference(5)


def test_only_a_resolved_secret_passes() -> None:
    secret = Secret("a")
    assert Referred().parse(secret) is secret
    with pytest.raises(WrongError) as caught:
        Referred().parse("sk-planted")
    assert "planted" not in str(caught.value)
    assert Referred().schema()["type"] == "string"
