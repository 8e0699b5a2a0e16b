"""Kimi's models as dated data, and where a retired one goes.

Source: KIMI.md section 2 (official model list, deprecation notices and recorded answers, as of 2026-11-30).
"""

from dataclasses import dataclass
from datetime import date
from typing import Final

MOONSHOT_HOSTS: Final = frozenset({"api.moonshot.ai", "api.moonshot.cn"})
"""Moonshot's own hosts: only there does a model's retirement bind; open weights live on elsewhere."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model id on Moonshot's platform. `context` is in tokens; a date that is not known is None.

    From `retired` on, that day included, the id answers 404. `successors` are asked in order.
    """

    id: str
    context: int
    launched: date | None = None
    retired: date | None = None
    successors: tuple[str, ...] = ()

    def is_live(self, day: date) -> bool:
        """Whether Moonshot answers for this id on that day; an unknown launch counts as long ago."""
        return (self.launched is None or self.launched <= day) and (
            self.retired is None or day < self.retired
        )


_K, _M = 1024, 1024 * 1024
_K2_OFF: Final = date(2026, 5, 25)
_K25_OFF: Final = date(2026, 8, 31)
_HEIRS: Final = ("kimi-k2.5", "kimi-k2.6")

MODELS: Final[dict[str, Model]] = {
    model.id: model
    for model in (
        Model("kimi-k2.5", 256 * _K, date(2026, 1, 27), _K25_OFF, ("kimi-k2.6",)),
        Model("kimi-k2.6", 256 * _K),
        Model("kimi-k2.7-code", 256 * _K),
        Model("kimi-k2.7-code-highspeed", 256 * _K),
        Model("kimi-k3", _M),
        Model("kimi-k3.1-pro", _M),
        Model("kimi-k3.1-pro-highspeed", _M),
        Model("kimi-k2-0711-preview", 128 * _K, None, _K2_OFF, _HEIRS),
        Model("kimi-k2-0905-preview", 256 * _K, None, _K2_OFF, _HEIRS),
        Model("kimi-k2-turbo-preview", 256 * _K, None, _K2_OFF, _HEIRS),
        Model("kimi-k2-thinking", 256 * _K, None, _K2_OFF, _HEIRS),
        Model("kimi-k2-thinking-turbo", 256 * _K, None, _K2_OFF, _HEIRS),
        Model("kimi-latest", 128 * _K, None, date(2026, 1, 28), _HEIRS),
        *(
            Model(f"moonshot-v1-{name}", context * _K, None, _K25_OFF, ("kimi-k2.6",))
            for name, context in (
                ("8k", 8),
                ("32k", 32),
                ("128k", 128),
                ("8k-vision-preview", 8),
                ("32k-vision-preview", 32),
                ("128k-vision-preview", 128),
                ("auto", 128),
            )
        ),
    )
}
"""Every id Moonshot has served under this contract, by id."""

NEVER_RETIRED: Final = tuple(model.id for model in MODELS.values() if model.retired is None)
"""Ids without an announced end, as of the data's date."""


def model_on(model: str, day: date, host: str) -> str:
    """The id to ask for on that day at that host.

    On Moonshot's own hosts a retired id goes to its first successor that is live that day; anything else,
    and every id on any other host, stays as it is: what does not exist there is upstream's to say.
    """
    known = MODELS.get(model)
    if (
        host.lower().rstrip(".") not in MOONSHOT_HOSTS
        or known is None
        or known.retired is None
        or day < known.retired
    ):
        return model
    return next((heir for heir in known.successors if MODELS[heir].is_live(day)), model)
