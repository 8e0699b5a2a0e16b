"""The provider's statement: a CSV file of charges, one a request or summed up by day, whatever its columns are called.

No provider documents such a file, and they differ, so columns are known by many names in English and Chinese, and
others can be named (`--column cost=Amount`). Amounts may bear a currency sign and separators of thousands.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "day": (
        *(
            "date",
            "day",
            "time",
            "timestamp",
            "created",
            "createdat",
            "createdtime",
            "billingdate",
            "usagedate",
        ),
        *("日期", "时间", "账单日期", "消费时间", "计费时间", "创建时间"),
    ),
    "model": ("model", "modelname", "modelid", "product", "sku", "模型", "模型名称", "产品"),
    "requests": (
        "requests",
        "requestcount",
        "calls",
        "count",
        "numrequests",
        "请求次数",
        "调用次数",
        "请求数",
    ),
    "input": ("inputtokens", "prompttokens", "input", "prompt", "输入tokens", "输入token", "输入"),
    "output": ("outputtokens", "completiontokens", "output", "completion", "输出tokens", "输出token", "输出"),
    "cached": (
        *("cachedtokens", "cachedinputtokens", "cachereadtokens", "cachehittokens", "cached", "cachetokens"),
        *("缓存命中tokens", "缓存tokens", "缓存命中"),
    ),
    "cost": (
        *("cost", "amount", "fee", "charge", "charged", "total", "totalcost", "totalamount", "spend"),
        *("金额", "费用", "消费金额", "实付金额", "扣费金额"),
    ),
    "currency": ("currency", "unit", "币种", "货币"),
    "request_id": (
        *("requestid", "id", "mshrequestid", "traceid", "completionid", "responseid", "generationid"),
        *("请求id", "请求编号"),
    ),
    "account": ("account", "organization", "organisation", "org", "orgid", "project", "账号", "组织"),
}
"""What a column may be called, in lower case and without blanks, signs and units."""

_CURRENCIES: Final = {
    "usd": "USD", "$": "USD", "us$": "USD", "美元": "USD",
    "cny": "CNY", "rmb": "CNY", "¥": "CNY", "￥": "CNY", "元": "CNY", "人民币": "CNY", "eur": "EUR", "€": "EUR",
}  # fmt: skip
_UNIT: Final = re.compile(
    r"[(_ \[\uff08]*(usd|cny|rmb|eur|元|美元|人民币|\$|¥|￥|€)[)\]\uff09]*$", re.IGNORECASE
)
_SIGN: Final = re.compile(r"^(us\$|\$|¥|￥|€)|(usd|cny|rmb|eur|元)$", re.IGNORECASE)
_NEEDED: Final = ("day", "cost")


class StatementError(ValueError):
    """The file is no statement that can be read: why, and what to write."""


class Charged(msgspec.Struct, frozen=True, gc=False):
    """One row: a request if it has an id, else a sum. `day` is ISO; an amount is in millionths of its currency."""

    day: str
    model: str = ""
    currency: str = ""
    cost_micro: int = 0
    requests: int = 1
    input: int = 0
    output: int = 0
    cached: int = 0
    request_id: str = ""
    account: str = ""


class Statement(msgspec.Struct, frozen=True):
    """A whole file. `problems` are lines that were left out, with the reason."""

    rows: tuple[Charged, ...]
    problems: tuple[str, ...] = ()

    @property
    def by_request(self) -> bool:
        """Whether every row is one request."""
        return bool(self.rows) and all(row.request_id for row in self.rows)


def read_statement(
    text: str, *, columns: Mapping[str, str] | None = None, currency: str = "", offset: float = 0.0
) -> Statement:
    """Read a statement. `columns` names columns of the file by our names, `currency` holds where the file says none.

    `offset`: hours by which the file's times are ahead of UTC; rows get their day in UTC where they have a time.
    Raises `StatementError`.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    while lines and not lines[0].strip():
        lines.pop(0)
    if not lines:
        raise StatementError("the file is empty")
    table = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=_delimiter(lines[0])))
    places, told = _columns(table[0], columns or {})
    rows: list[Charged] = []
    problems: list[str] = []
    for number, cells in enumerate(table[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        try:
            rows.append(_row(cells, places, told or currency, offset))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    return Statement(tuple(rows), tuple(problems))


def _delimiter(head: str) -> str:
    return max(",;\t|", key=head.count)


def _plain(name: str) -> str:
    return re.sub(r"[\s_\-./:()\uff08\uff09\[\]]", "", name.strip().lower())


def _columns(head: Sequence[str], given: Mapping[str, str]) -> tuple[dict[str, int], str]:
    """Where each of our columns stands, and the currency if the name of the cost column says it."""
    written = [name.strip() for name in head]
    places: dict[str, int] = {}
    currency = ""
    for ours, theirs in given.items():
        if ours not in NAMES:
            raise StatementError(f"there is no column {ours}; known are {', '.join(NAMES)}")
        if theirs not in written:
            raise StatementError(f"the file has no column {theirs}; it has {', '.join(written)}")
        places[ours] = written.index(theirs)
    for ours, known in NAMES.items():
        if ours not in places:
            found = (at for name in known for at, theirs in enumerate(written) if _named(theirs) == name)
            at = next(found, None)
            if at is not None and at not in places.values():
                places[ours] = at
    missing = [name for name in _NEEDED if name not in places]
    if missing:
        mend = " ".join(f"--column {name}=NAME" for name in missing)
        raise StatementError(
            f"no column for {' and '.join(missing)} among {', '.join(written)}; write {mend}"
        )
    unit = _UNIT.search(written[places["cost"]])
    if unit:
        currency = _CURRENCIES[unit[1].lower()]
    return places, currency


def _named(theirs: str) -> str:
    """A column's name without its unit: `Cost (USD)` is `cost`."""
    return _plain(_UNIT.sub("", theirs.strip())) or _plain(theirs)


def _row(cells: Sequence[str], places: Mapping[str, int], currency: str, offset: float) -> Charged:
    def cell(name: str) -> str:
        at = places.get(name, len(cells))
        return cells[at].strip() if at < len(cells) else ""

    cost, signed = _amount(cell("cost"))
    said = cell("currency").lower()
    money = _CURRENCIES.get(said, said.upper()) or signed or currency
    if not money:
        raise ValueError("it says no currency; write --currency USD or CNY")
    counts = {name: _count(cell(name)) for name in ("input", "output", "cached")}
    requests = _count(cell("requests")) if cell("requests") else 1
    return Charged(
        _day(cell("day"), offset),
        cell("model"),
        money,
        cost,
        requests,
        counts["input"],
        counts["output"],
        counts["cached"],
        cell("request_id"),
        cell("account"),
    )


def _amount(text: str) -> tuple[int, str]:
    """Millionths, and the currency that its sign says."""
    sign = _SIGN.search(text)
    bare = _SIGN.sub("", text).strip().replace(",", "").replace(" ", "")
    try:
        micro = Decimal(bare) * 1_000_000
        return int(micro.to_integral_value()), _CURRENCIES[sign[0].lower()] if sign else ""
    except (InvalidOperation, ValueError):
        raise ValueError(f'"{text}" is no amount') from None


def _count(text: str) -> int:
    bare = text.replace(",", "").replace(" ", "")
    if not bare:
        return 0
    try:
        return int(Decimal(bare))
    except (InvalidOperation, ValueError, OverflowError):
        raise ValueError(f'"{text}" is no count') from None


_MILLISECONDS: Final = 10**11


def _day(text: str, offset: float) -> str:
    """The day in UTC; a bare day is taken as it is written."""
    bare = text.replace("/", "-").replace(".", "-") if re.match(r"\d{4}[/.]", text) else text
    try:
        if re.fullmatch(r"\d{9,}", bare):
            seconds = int(bare) / 1000 if int(bare) > _MILLISECONDS else int(bare)
            return datetime.fromtimestamp(seconds, UTC).date().isoformat()
        at = datetime.fromisoformat(bare)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f'"{text}" is no day') from None
    if len(bare) <= len("2026-11-30"):
        return at.date().isoformat()
    return (at.astimezone(UTC) if at.tzinfo else at - timedelta(hours=offset)).date().isoformat()


def differences(
    ours: Mapping[tuple[str, str, str], int], rows: Sequence[Charged]
) -> Iterator[tuple[str, str, str, int, int]]:
    """Day, model, currency, our amount and the statement's, in millionths, of every day that the statement has.

    `ours` are amounts by day, model and currency. Where the statement names no models, ours are added up.
    """
    days = {row.day for row in rows}
    named = all(row.model for row in rows)
    theirs: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row.day, row.model if named else "", row.currency)
        theirs[key] = theirs.get(key, 0) + row.cost_micro
    summed: dict[tuple[str, str, str], int] = {}
    for (day, model, currency), micro in ours.items():
        if day in days:
            key = (day, model if named else "", currency)
            summed[key] = summed.get(key, 0) + micro
    for key in sorted({*theirs, *summed}):
        yield (*key, summed.get(key, 0), theirs.get(key, 0))
