"""What sections of the settings are made of, and those that stand in more than one place of the tree."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from moongate.core.kinds import Amount, Day, Note, Text

PATH = Text(word="path")
NAME = Text(
    r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}",
    "write up to 128 letters, digits and any of . _ / : @ -, beginning with a letter or digit",
    "name",
)
CURRENCY = Text(r"[A-Z]{3}", "write a code of three capitals, such as USD or CNY", "currency")


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A mapping in the file: unknown keys are refused."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Price(Section):
    """What a million tokens of one model cost from a day on, in units of the currency."""

    miss: Annotated[int, Amount(), Note("Input tokens that were not in the provider's prompt cache.")]
    output: Annotated[int, Amount(), Note("Output tokens.")]
    hit: Annotated[
        int | None, Amount(), Note("Input tokens that were in the prompt cache. Default: as `miss`.")
    ] = None
    write: Annotated[
        int | None,
        Amount(),
        Note("Input tokens that were put into the prompt cache for minutes. Default: as `miss`."),
    ] = None
    write_hour: Annotated[
        int | None,
        Amount(),
        Note("The same for an hour. Default: not known, so that such a call has no cost until it is."),
    ] = None
    reasoning: Annotated[
        int | None, Amount(), Note("Output tokens that were reasoning. Default: as `output`.")
    ] = None
    model: Annotated[
        str, NAME, Note("The model id that is asked for upstream. Default: every model of the target.")
    ] = ""
    currency: Annotated[str, CURRENCY, Note("Needed at the top; at a target, the target's own.")] = ""
    since: Annotated[str, Day(), Note("The first day (UTC) on which it holds, up to the next row's.")] = (
        "1970-01-01"
    )
