import dataclasses
import timeit

import pytest

from moongate.core.models import NEVER_RETIRED
from moongate.core.secret import Secret
from moongate.core.settings import PRESETS, Settings, Timeouts


def test_defaults_are_whole() -> None:
    settings = Settings()
    assert str(settings.listen) == "127.0.0.1:8080"
    assert str(settings.admin.listen) == "127.0.0.1:8081"
    assert str(settings.targets["kimi"].url) == "https://api.moonshot.ai/v1"
    assert list(settings.routes) == ["kimi-k2.5", *NEVER_RETIRED]
    k25 = settings.routes["kimi-k2.5"]
    assert k25.aliases == ("kimi-2.5", "kimi_2.5")
    assert k25.successors == ("kimi-k2.6",)
    assert k25.targets[0].model == k25.model == "kimi-k2.5"
    assert settings.edge.body_bytes == 32 * 1024 * 1024
    assert settings.max_concurrent_requests is None


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().workers = 2  # type: ignore[misc]


def with_secret() -> Settings:
    settings = Settings()
    target = dataclasses.replace(settings.targets["kimi"], key=Secret("sk-planted"))
    return dataclasses.replace(settings, targets={"kimi": target})


def test_a_snapshot_goes_to_a_worker_whole_and_secrets_with_it() -> None:
    settings = with_secret()
    assert Settings.from_json(settings.to_json()) == settings
    assert Settings.from_json(settings.to_json()).targets["kimi"].key == Secret("sk-planted")


def test_a_snapshot_that_is_shown_keeps_its_secrets() -> None:
    assert "planted" not in repr(with_secret())
    assert "planted" not in str(with_secret())


def test_decoding_is_quick() -> None:
    document = Settings().to_json()
    assert min(timeit.repeat(lambda: Settings.from_json(document), number=10, repeat=5)) / 10 < 0.005


def test_presets_write_only_what_there_is() -> None:
    known = {each.name for each in dataclasses.fields(Timeouts)}
    assert all(set(values) <= known for values in PRESETS.values())
    assert PRESETS["default"] == {}
