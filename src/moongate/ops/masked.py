"""Settings as they may be shown: every secret is replaced, whatever it is called and wherever it stands."""

import dataclasses
from collections.abc import Mapping

import msgspec

from moongate.core.addresses import Address, Url
from moongate.core.secret import Secret


def masked(settings: object) -> bytes:
    """The settings as JSON; a secret shows as `***`."""
    return msgspec.json.encode(_shown(settings))


def _shown(value: object) -> object:
    if isinstance(value, Secret):
        return "***"
    if isinstance(value, Address | Url):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {field.name: _shown(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _shown(item) for name, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [_shown(item) for item in value]
    return value
