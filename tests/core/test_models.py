from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.models import MODELS, MOONSHOT_HOSTS, NEVER_RETIRED, Model, model_on

OFF = date(2026, 8, 31)


@pytest.mark.parametrize(
    ("model", "day", "asked"),
    [
        ("kimi-k2.5", OFF - timedelta(days=1), "kimi-k2.5"),
        ("kimi-k2.5", OFF, "kimi-k2.6"),
        ("kimi-k2-0905-preview", date(2026, 5, 24), "kimi-k2-0905-preview"),
        ("kimi-k2-0905-preview", date(2026, 5, 25), "kimi-k2.5"),
        ("kimi-k2-0905-preview", OFF, "kimi-k2.6"),
        ("moonshot-v1-8k", OFF, "kimi-k2.6"),
        ("kimi-latest", date(2026, 1, 28), "kimi-k2.5"),
        ("kimi-k3", OFF, "kimi-k3"),
        ("our-own-model", OFF, "our-own-model"),
    ],
)
@pytest.mark.parametrize("host", ["api.moonshot.ai", "api.moonshot.cn", "API.Moonshot.AI."])
def test_a_retired_model_goes_to_its_first_live_successor_at_moonshot(
    model: str, day: date, asked: str, host: str
) -> None:
    assert model_on(model, day, host) == asked


@given(
    st.sampled_from(sorted(MODELS)), st.dates(), st.sampled_from(["127.0.0.1", "kimi.example", "moonshot.ai"])
)
def test_elsewhere_every_model_stays_what_it_is(model: str, day: date, host: str) -> None:
    assert model_on(model, day, host) == model


@given(st.sampled_from(sorted(MODELS)), st.dates(min_value=date(2026, 2, 1)))
def test_at_moonshot_what_is_asked_for_is_live(model: str, day: date) -> None:
    asked = model_on(model, day, "api.moonshot.ai")
    assert MODELS[asked].is_live(day)
    assert asked in (model, *MODELS[model].successors)


def test_without_a_live_successor_the_id_stays() -> None:
    assert model_on("kimi-latest", date(2026, 1, 28), "api.moonshot.ai") == "kimi-k2.5"
    before = date(2026, 1, 26)
    assert not MODELS["kimi-k2.5"].is_live(before)
    assert Model("a", 1).is_live(before)


def test_the_data_is_whole() -> None:
    assert all(name == model.id for name, model in MODELS.items())
    assert all(heir in MODELS for model in MODELS.values() for heir in model.successors)
    assert all(model.successors for model in MODELS.values() if model.retired)
    assert "kimi-k2.6" in NEVER_RETIRED
    assert "kimi-k2.5" not in NEVER_RETIRED
    assert MODELS["kimi-k2.5"].context == 262144
    assert MODELS["kimi-k3"].context == 1048576
    assert frozenset({"api.moonshot.ai", "api.moonshot.cn"}) == MOONSHOT_HOSTS
