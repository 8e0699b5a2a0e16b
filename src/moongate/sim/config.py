"""What a simulator process is told at its start."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from moongate.sim.accounts import TIERS, UNLIMITED, Account, Tier

DEFAULT_AS_OF: Final = date(2026, 6, 1)
CERTIFICATES: Final = ("good", "expired", "wrong_name", "unknown_ca", "tls10")
KINDS: Final = ("api", "control", "refused", "full_backlog", "silent", "reset", "tls_stall")


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One listener. Port 0 lets the kernel choose. Durations are seconds.

    `kind`: `api` answers; `control` answers `/_sim` only and survives switches; the others are ports that
    misbehave before HTTP: `refused` (nothing listens), `full_backlog` (SYNs are dropped), `silent` (accepts
    and never answers), `reset` (resets what it accepts), `tls_stall` (accepts, never finishes a handshake).
    `tls`: empty for none, else `good`, `expired`, `wrong_name`, `unknown_ca`, `tls10`. `tokens_per_second` 0
    is as fast as it goes. `alpn` are the protocols offered over TLS. `slots` is how many requests run at once, further
    ones wait, as on a server of one's own; 0: no bound.
    """

    name: str = "kimi"
    host: str = "127.0.0.1"
    port: int = 0
    kind: str = "api"
    face: str = "moonshot"
    tls: str = ""
    alpn: tuple[str, ...] = ("h2", "http/1.1")
    http2: bool = True
    first_token: float = 0.0
    tokens_per_second: float = 0.0
    sampling: bool = False
    seed: str = ""
    models: tuple[str, ...] = ()
    api_key: str = ""
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """The whole process.

    `script` is a document as `script.rules_from` takes it. `dns` has `port` and `records` of a name server;
    None runs none.
    """

    hosts: tuple[HostConfig, ...] = (HostConfig(),)
    seed: str = "moon"
    as_of: date = DEFAULT_AS_OF
    accounts: tuple[Account, ...] = ()
    script: Any = None
    keep_executions: int = 100_000
    tls_dir: Path | None = None
    dns: dict[str, Any] | None = None
    port_file: Path | None = None


def hosts_from(listed: list[Any]) -> tuple[HostConfig, ...]:
    """Listeners from a document; a wrong member is a TypeError that names it."""
    return tuple(_host(one) for one in listed)


def _host(one: dict[str, Any]) -> HostConfig:
    members: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in one.items()
    }
    return HostConfig(**members)


def accounts_from(listed: list[Any]) -> tuple[Account, ...]:
    """Accounts from a document.

    `tier` is a name (`0` to `5`, or `0-2026-09` for the lowered set) or an object of limits; `balance` is in
    whole units of the currency and makes the account prepaid.
    """
    return tuple(_account(one) for one in listed)


def _account(one: dict[str, Any]) -> Account:
    members = dict(one)
    tier = members.pop("tier", None)
    balance = members.pop("balance", None)
    for name in ("keys", "hosts", "models"):
        members[name] = tuple(members.get(name, ()))
    account = Account(**members)
    if isinstance(tier, dict):
        account.tier = Tier(**tier)
    elif tier is not None:
        account.tier = TIERS[str(tier)]
        account.tier_name = f"enterprise-tier-{str(tier).partition('-')[0]}"
    else:
        account.tier = UNLIMITED
    if balance is not None:
        account.balance_micro = round(float(balance) * 1_000_000)
        account.prepaid = True
    return account
