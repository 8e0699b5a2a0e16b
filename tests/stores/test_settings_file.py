"""The settings file on disk."""

import sys
from pathlib import Path

import pytest

from moongate.core.mistakes import SettingsError
from moongate.store.settings_file import MOST_BYTES, check_file, load_file, read_text


def test_secrets_come_from_the_environment_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    file = tmp_path / "moongate.yaml"
    key = f"${{file:{tmp_path}/key}}"
    file.write_text(
        f"targets: {{a: {{url: 'http://h', key: '{key}'}}, b: {{url: 'http://h', key: '${{env:K}}'}}}}"
    )
    monkeypatch.setenv("K", "sk-env")
    targets = load_file(file, {"--workers": "2"}).targets
    assert [target.key.text for target in targets.values() if target.key] == ["sk-file", "sk-env"]
    assert check_file(file)[1] == 0


def test_http_2_without_libcurl_is_refused_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moongate.yaml"
    file.write_text(
        "targets: {a: {url: 'https://h', protocol: http2}, b: {url: 'https://h', protocol: auto}}"
    )
    assert check_file(file)[1] == 0
    monkeypatch.setitem(sys.modules, "pycurl", None)
    problem = r"protocol: HTTP/2 needs libcurl, .*; pip install 'moongate\[http2\]', or write http1 or auto$"
    with pytest.raises(SettingsError, match=problem) as raised:
        load_file(file)
    assert len(raised.value.mistakes) == 1


def test_no_file_means_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONSHOT_API_KEY", "sk-x")
    assert load_file(None).workers == 1
    monkeypatch.delenv("MOONSHOT_API_KEY")
    with pytest.raises(SettingsError, match=r"^defaults: targets\.kimi\.key: "):
        load_file(None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"\xff", "not UTF-8"),
        (b" " * (MOST_BYTES + 1), "more than"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "m.yaml"
    if content is not None:
        file.write_bytes(content)
    (line,), code = check_file(file)
    assert code == 1
    assert line.startswith(f"{file}: ")
    assert problem in line
    with pytest.raises(SettingsError):
        load_file(file)


def test_mistakes_in_a_file_are_printed_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("workerz: 2\ncache: {}\ntargets: {a: {url: 'http://h'}}\n")
    lines, code = check_file(file)
    assert code == 1
    assert lines[0] == f'{file}:1:1: workerz: unknown setting; did you mean "workers"?'
    assert lines[-1] == "2 mistakes"


def test_text_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ü" * 9, encoding="utf-8")
    assert read_text(str(tmp_path / "a")) == "ü" * 9
