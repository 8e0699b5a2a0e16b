"""Accounts: who may call, within which limits, with which balance, and what the prefix cache holds for them.

Limits belong to an organisation and are shared by all its keys and models (KIMI.md section 6). Tokens a
minute are checked as prompt plus the cap asked for, or the model's default, not as what comes out. Wording
and headers of the refusals are Kimi's. Windows slide: a minute is the last 60 s, a day the last 86,400 s.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from moongate.sim.reply import Header, Refusal

PACED: Final[list[Header]] = [
    (b"Retry-After", b"1"),
    (b"X-Retry-After", b"1"),
    (b"Msh-Cooldown-Seconds", b"1"),
]
"""What comes with `rate_limit_reached_error` alone. Always 1, however long the window needs."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Limits of an organisation; None means none."""

    concurrency: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    tpd: int | None = None


TIERS: Final[dict[str, Tier]] = {
    "0": Tier(1, 3, 500_000, 1_500_000),
    "1": Tier(50, 200, 2_000_000),
    "2": Tier(100, 500, 3_000_000),
    "3": Tier(200, 5_000, 3_000_000),
    "4": Tier(400, 5_000, 4_000_000),
    "5": Tier(1_000, 10_000, 5_000_000),
    "0-2026-09": Tier(1, 3, 500_000, 1_500_000),
    "1-2026-09": Tier(15, 100, 2_000_000),
    "2-2026-09": Tier(40, 100, 3_000_000),
    "3-2026-09": Tier(50, 200, 3_000_000),
    "4-2026-09": Tier(60, 200, 4_000_000),
    "5-2026-09": Tier(100, 300, 5_000_000),
}
UNLIMITED: Final = Tier()


class Window:
    """A sum over the last `seconds`."""

    __slots__ = ("_entries", "_seconds", "_sum")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._entries: deque[tuple[float, int]] = deque()
        self._sum = 0

    def total(self, now: float) -> int:
        """What was added within the window that ends now."""
        entries = self._entries
        while entries and entries[0][0] <= now - self._seconds:
            self._sum -= entries.popleft()[1]
        return self._sum

    def add(self, now: float, amount: int) -> None:
        """Count an amount at this instant."""
        self._entries.append((now, amount))
        self._sum += amount


class PrefixCache:
    """Which prompt beginnings the provider has lately read, in steps of 256 tokens (1,024 bytes)."""

    STEP_TOKENS: Final = 256
    STEP_BYTES: Final = 1024

    def __init__(self, capacity: int = 65_536, ttl: float = 300.0) -> None:
        self._capacity = capacity
        self._ttl = ttl
        self._steps: dict[int, float] = {}

    def read(self, model: str, prompt: bytes, now: float) -> int:
        """Tokens of this prompt's beginning found in the cache; afterwards the whole prompt is in it."""
        steps, hits, missed = self._steps, 0, False
        chain = hash(model)
        for at in range(0, len(prompt) - self.STEP_BYTES + 1, self.STEP_BYTES):
            chain = hash((chain, prompt[at : at + self.STEP_BYTES]))
            read_at = steps.get(chain)
            if not missed and read_at is not None and now - read_at <= self._ttl:
                hits += 1
            else:
                missed = True
            steps[chain] = now
        while len(steps) > self._capacity:
            del steps[next(iter(steps))]  # first written, first out: cheaper than by last use, and rare
        return hits * self.STEP_TOKENS

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()


@dataclass(slots=True)
class Account:
    """An organisation with its keys. `balance_micro` is spent by executions only if `prepaid`."""

    id: str = "org-sim"
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tier: Tier = UNLIMITED
    tier_name: str = "enterprise-tier-5"
    currency: str = "USD"
    balance_micro: int = 12_500_000
    prepaid: bool = False
    suspended: bool = False
    models: tuple[str, ...] = ()
    running: int = 0
    cache: PrefixCache = field(default_factory=PrefixCache)
    _requests: Window = field(default_factory=lambda: Window(60.0))
    _minute: Window = field(default_factory=lambda: Window(60.0))
    _day: Window = field(default_factory=lambda: Window(86_400.0))

    def admit(self, key_id: str, tokens: int, now: float) -> None:
        """Let a request in and hold a slot for it, or raise a `Refusal`.

        `tokens` are prompt plus cap. All limits are looked at before any is charged. Who is admitted calls
        `leave` once.
        """
        who, tier = f"{self.id}<{key_id}>", self.tier
        if self.suspended or (self.prepaid and self.balance_micro <= 0):
            raise suspended(who)
        if tier is not UNLIMITED:
            if tier.concurrency is not None and self.running >= tier.concurrency:
                raise paced(
                    f"Your account {who} request reached organization max concurrency: {tier.concurrency}"
                )
            if tier.rpm is not None and self._requests.total(now) >= tier.rpm:
                raise paced(f"Your account {who} request reached organization max RPM: {tier.rpm}")
            self._admit_tokens(who, tokens, now)
            self._requests.add(now, 1)
            self._minute.add(now, tokens)
            self._day.add(now, tokens)
        self.running += 1

    def _admit_tokens(self, who: str, tokens: int, now: float) -> None:
        limits = (("TPM", self.tier.tpm, self._minute), ("TPD", self.tier.tpd, self._day))
        for name, limit, window in limits:
            current = window.total(now) if limit is not None else 0
            if limit is not None and current + tokens > limit:
                raise Refusal(
                    429,
                    "rate_limit_reached_error",
                    f"Your account {who} request reached organization {name} rate limit, "
                    f"current:{current + tokens}, limit:{limit}",
                    PACED,
                )

    def leave(self) -> None:
        """Give the slot back."""
        self.running -= 1


def paced(message: str) -> Refusal:
    """A rate limit that tells its wait, which is always one second."""
    return Refusal(429, "rate_limit_reached_error", f"{message}, please try again after 1 seconds", PACED)


def suspended(who: str) -> Refusal:
    """No money left on the account."""
    return Refusal(
        429,
        "exceeded_current_quota_error",
        f"Your account {who} is suspended due to insufficient balance, please recharge your account or check "
        "your plan and billing details",
    )


class Accounts:
    """All accounts. Without any, every key is good and belongs to one unlimited organisation."""

    def __init__(self, accounts: Iterable[Account] = ()) -> None:
        self.listed = list(accounts)
        self._open = Account()
        self._by_key = {key: account for account in self.listed for key in account.keys}

    def everyone(self) -> list[Account]:
        """Every account, the one for undeclared keys last when none are declared."""
        return self.listed or [self._open]

    def find(self, authorization: str, host: str) -> tuple[Account, str]:
        """The account and key that a request names, or the 401 that it gets.

        No key and an unknown one are `incorrect_api_key_error`; another scheme than Bearer, a key of another
        host and keys that begin with `sk-revoked` are `invalid_authentication_error`. Keys that begin with
        `sk-wrong` are unknown even where every key is good.
        """
        if not authorization:
            raise Refusal(401, "incorrect_api_key_error", "Incorrect API key provided")
        scheme, _, key = authorization.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key or key.startswith("sk-revoked"):
            raise Refusal(401, "invalid_authentication_error", "Invalid Authentication")
        account = self._by_key.get(key) if self.listed else self._open
        if account is None or key.startswith("sk-wrong"):
            raise Refusal(401, "incorrect_api_key_error", "Incorrect API key provided")
        if account.hosts and host not in account.hosts:
            raise Refusal(401, "invalid_authentication_error", "Invalid Authentication")
        return account, key
