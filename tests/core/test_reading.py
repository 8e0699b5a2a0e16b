from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.flags import FLAGS
from moongate.core.mistakes import SettingsError
from moongate.core.reading import check, load
from moongate.core.secret import Secret
from moongate.core.settings import Settings

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
FILES = {
    "/run/kimi": "sk-file\n",
    "/run/empty": "\n",
    "/run/two": "sk a\n",
    "/ca.pem": PEM,
    "/run/accent": "sk-é",
}
ENV = {"MOONSHOT_API_KEY": "sk-planted", "EMPTY": ""}


def read_file(path: str) -> str:
    if path == "/run/latin":
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")
    if path == "/run/odd":
        raise OSError
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path]


def read(text: str, env: Mapping[str, str] = ENV, **flags: str) -> Settings:
    overrides = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return load(text, origin="m.yaml", read_env=env.get, read_file=read_file, overrides=overrides)


def refused(text: str, env: Mapping[str, str] = ENV, **flags: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(text, env, **flags)
    assert "planted" not in str(caught.value)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_no_file_is_needed() -> None:
    settings = read("")
    assert settings.targets["kimi"].key == Secret("sk-planted")
    assert settings.routes == Settings().routes
    assert load("", origin="m", read_env=ENV.get, read_file=read_file) == settings


def test_without_a_key_moonshot_is_not_called() -> None:
    (said,) = refused("", {})
    assert said.startswith(
        "m.yaml: targets.kimi.key: the environment variable MOONSHOT_API_KEY is not set; set MOON"
    )
    assert "--kimi-api-url" in said


def test_another_upstream_needs_no_key() -> None:
    settings = read("", {}, kimi_api_url="http://127.0.0.1:9000/v1")
    assert settings.targets["kimi"].key is None
    assert str(settings.targets["kimi"].url) == "http://127.0.0.1:9000/v1"
    assert settings.targets["kimi"].dialect == "moonshot"


def test_a_whole_file_becomes_a_snapshot() -> None:
    settings = read("""
        listen: "[::]:80"
        workers: 2
        state: /var/lib/moongate
        edge: {body_bytes: 1MB, trusted: [unix, 10.0.0.0/8], body_seconds: 90}
        targets:
          one: {url: "https://api.moonshot.cn/v1", key: "${file:/run/kimi}", ca_file: /ca.pem}
          two: {url: "http://vllm:8000/v1", dialect: vllm, model: moonshotai/Kimi-K2.5, account: gpu}
        routes:
          kimi:
            aliases: [kimi-2.5]
            model: kimi-k2.6
            targets: [one, {target: two, weight: 1}]
            timeouts: {preset: interactive, idle: 1m}
        log: {access: off, sample: 1}
    """)
    assert (settings.listen.host, settings.listen.port) == ("::", 80)
    assert settings.run == "/var/lib/moongate/run"
    assert settings.edge.trusted == ("unix", "10.0.0.0/8")
    one, two = settings.targets.values()
    assert (one.key, one.dialect, one.account) == (Secret("sk-file"), "moonshot", "one")
    assert (two.key, two.dialect, two.account) == (None, "vllm", "gpu")
    kimi = settings.routes["kimi"]
    assert [(leg.target, leg.model, leg.weight) for leg in kimi.targets] == [
        ("one", "kimi-k2.6", 1),
        ("two", "moonshotai/Kimi-K2.5", 1),
    ]
    assert (kimi.timeouts.write, kimi.timeouts.head, kimi.timeouts.idle) == (15.0, 120.0, 60.0)
    assert (settings.log.access, settings.log.sample) == ("off", 1.0)
    assert Settings.from_json(settings.to_json()) == settings


def test_all_mistakes_of_all_kinds_come_at_once_in_the_order_of_the_file() -> None:
    said = refused("""\
workerz: 2
cache: {size: 1}
edge: {body_bytes: 32XB, trusted: ["${env:X}", nope]}
targets:
  kimi: {url: "https://h/v1", key: planted}
  two: {key: "${env:NOPE}"}
routes:
  r: {targets: [kmi, two], cache: yes}
  s: {targets: [kimi], aliases: [r]}
  s: {}
log: {sample: 2}
""")
    assert [line.partition(";")[0] for line in said] == [
        "m.yaml:1:1: workerz: unknown setting",
        "m.yaml:2:1: cache: not yet: answers are not cached",
        'm.yaml:3:20: edge.body_bytes: "32XB" is not a size',
        "m.yaml:3:36: edge.trusted[0]: a reference means something in a secret only",
        'm.yaml:3:48: edge.trusted[1]: "nope" is not a network',
        "m.yaml:5:36: targets.kimi.key: a secret may not stand here in plain text",
        "m.yaml:6:3: targets.two: needs `url`",
        "m.yaml:6:14: targets.two.key: the environment variable NOPE is not set",
        'm.yaml:8:17: routes.r.targets[0]: there is no target "kmi"',
        "m.yaml:8:28: routes.r.cache: not yet: answers are not cached",
        'm.yaml:9:34: routes.s.aliases[0]: "r" already means route r',
        "m.yaml:10:3: routes.s: stands twice, first in line 9",
        "m.yaml:11:15: log.sample: 2 is not a share",
    ]


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("${env:EMPTY}", "what EMPTY holds is empty"),
        ("${file:/run/gone}", "the file /run/gone cannot be read (No such file or directory)"),
        ("${file:/run/latin}", "the file /run/latin cannot be read (it is not UTF-8)"),
        ("${file:/run/odd}", "the file /run/odd cannot be read (no reason given)"),
        ("${file:/run/empty}", "what /run/empty holds is empty"),
        ("${file:/run/two}", "what /run/two holds is empty or has blanks"),
        ("${file:/run/accent}", "or characters that no header takes"),
        ("sk-planted", "a secret may not stand here in plain text"),
    ],
)
def test_a_secret_that_is_not_there_is_a_mistake_with_its_line(reference: str, problem: str) -> None:
    (said,) = refused(f"targets:\n  k: {{url: 'http://h', key: '{reference}'}}\n")
    assert said.startswith("m.yaml:2:")
    assert problem in said


def test_references_mean_something_in_secrets_only() -> None:
    text = "state: ${env:HOME}\nrequest_id: {upstream_headers: [X-A, '${env:B}', X-C, '${env:D}']}\n"
    assert [line.split(" ")[1] for line in refused(text)] == [
        "state:",
        "request_id.upstream_headers[1]:",
        "request_id.upstream_headers[3]:",
    ]


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("/gone.pem", '"/gone.pem" cannot be read (No such file or directory)'),
        ("/run/kimi", '"/run/kimi" holds no certificate'),
    ],
)
def test_authorities_are_opened_before_they_are_needed(file: str, problem: str) -> None:
    (said,) = refused(f"targets: {{k: {{url: 'https://h', ca_file: {file}}}}}\n")
    assert problem in said


def test_a_text_that_is_no_yaml_is_told_alone() -> None:
    (said,) = refused("a: [", {})
    assert said.startswith("m.yaml:")
    assert "not YAML" in said


def test_flags_override_the_file_and_their_mistakes_name_them() -> None:
    settings = read(
        "workers: 1\nstate: a\nlisten: '127.0.0.1:1'\n", workers="3", state="b", listen_addr="[::1]:2"
    )
    assert (settings.workers, settings.state, settings.run, str(settings.listen)) == (
        3,
        "b",
        "b/run",
        "[::1]:2",
    )
    assert refused("", workers="x") == [
        '--workers: workers: "x" is not a whole number; write a number from 1 to 64'
    ]


@pytest.mark.parametrize("flag", ["cache_capacity", "redis_url", "kimi_max_gpu_concurrency"])
def test_flags_of_parts_to_come_are_refused(flag: str) -> None:
    (said,) = refused("", ENV, **{flag: "1"})
    assert ": not yet: " in said


def test_nothing_is_missed_that_only_follows_from_another_mistake() -> None:
    assert len(refused("targets: 5")) == 1
    assert len(refused("routes: 5\ntargets: {a: {url: 'http://h'}}")) == 1
    assert len(refused("targets: {}")) == 1
    assert len(refused("routes: {}")) == 1
    assert len(refused("targets: {bad name: {url: 'http://h'}}")) == 1
    assert len(refused("edge: {body_bytes: 512MB, held_bytes: lots}")) == 1
    assert len(refused("state: 5")) == 1
    assert len(refused("routes: {r: {targets: [kimi], model: 5}}")) == 1


def test_check_says_good_or_every_mistake() -> None:
    lines, code = check("", origin="defaults", read_env=ENV.get, read_file=read_file)
    assert code == 0
    assert lines[0] == "defaults: good, 1 target, 7 routes"
    assert "  kimi-k2.5 (kimi-2.5, kimi_2.5) -> kimi" in lines
    lines, code = check("a: 1", origin="m", read_env=ENV.get, read_file=read_file)
    assert (lines[-1], code) == ("1 mistake", 1)
    lines, code = check("a: 1\nb: 1\n", origin="m", read_env=ENV.get, read_file=read_file)
    assert (len(lines), lines[-1], code) == (3, "2 mistakes", 1)


WORDS = (
    "listen workers state run admin edge body_bytes trusted targets routes kimi url key account model aliases"
)
KEYS = st.sampled_from(
    [*WORDS.split(), "target", "weight", "timeouts", "preset", "log", "sample", "cache", "<<", "x"]
)
LEAVES = st.sampled_from(
    [
        None,
        True,
        1,
        -1,
        0.5,
        "off",
        "32MB",
        "5m",
        "kimi",
        "http://h/v1",
        "${env:MOONSHOT_API_KEY}",
        "bad name",
        "",
        "a:1",
    ]
)
TREES = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4)
)


@given(
    st.dictionaries(KEYS, TREES, max_size=5),
    st.dictionaries(st.sampled_from(sorted(FLAGS)), st.text(max_size=5)),
)
def test_anything_is_settings_or_mistakes(tree: dict[str, object], flags: dict[str, str]) -> None:
    text = repr(tree).replace("None", "null")  # Python's notation of these is YAML's flow notation
    try:
        settings = load(text, origin="m", read_env=ENV.get, read_file=read_file, overrides=flags)
    except SettingsError as error:
        said = error.mistakes
    else:
        said = ()
        assert Settings.from_json(settings.to_json()) == settings
    assert all(mistake.problem and mistake.mend and "planted" not in str(mistake) for mistake in said)
    assert len({str(mistake) for mistake in said}) == len(said)


@pytest.mark.parametrize(
    ("protocol", "extras", "is_good"),
    [("http2", {"http2"}, True), ("http2", set(), False), ("auto", set(), True), ("http1", set(), True)],
)
def test_a_protocol_may_need_an_extra(protocol: str, extras: set[str], is_good: bool) -> None:
    text = f"targets: {{k: {{url: 'https://h', protocol: {protocol}}}}}\n"

    def read_it() -> Settings:
        return load(text, origin="m.yaml", read_env=ENV.get, read_file=read_file, extras=extras)

    if is_good:
        assert read_it().targets["k"].protocol == protocol
    else:
        with pytest.raises(SettingsError, match=r"^m\.yaml:1:.*moongate\[http2\]"):
            read_it()
