"""The prices that records name stay readable when the settings change, and a damaged book stops nothing."""

from dataclasses import replace
from pathlib import Path

from moongate.core.section import Price
from moongate.core.settings import Settings
from moongate.store import price_book

NOV = 1_796_000_000.0


def settings(*top: Price, own: tuple[Price, ...] = (), currency: str = "USD") -> Settings:
    kimi = replace(Settings().targets["kimi"], prices=own, currency=currency)
    return replace(Settings(), prices=top, targets={"kimi": kimi})


def test_it_holds_what_the_settings_say_and_keeps_what_they_said(tmp_path: Path) -> None:
    top = Price(5, 6, model="kimi-k2.6", currency="CNY", since="2026-10-01")
    price_book.save(tmp_path, settings(top, own=(Price(1, 2, hit=0),), currency="EUR"))
    book = price_book.load(tmp_path)
    assert book.currency("kimi") == "EUR"
    assert book.currency("nobody") == ""
    own = book.table().row("any", "EUR", NOV, "kimi")
    listed = book.table().row("kimi-k2.6", "CNY", NOV)
    assert own is not None
    assert listed is not None
    assert (own.miss, own.output, own.hit, own.own) == (1, 2, 0, True)
    assert listed.miss == 5
    price_book.save(tmp_path, settings())
    later = price_book.load(tmp_path)
    assert later.table().row("any", "EUR", NOV, "kimi") is None
    assert later.row(own.id) == own, "an old record names it"
    assert later.currency("kimi") == "USD"


def test_the_programs_own_rows_are_found_by_name(tmp_path: Path) -> None:
    book = price_book.load(tmp_path)
    row = book.row("kimi-k2.5/USD/2026-01-27")
    assert row is not None
    assert row.miss == 600_000
    assert book.row("nobody/USD/2026-01-27") is None
    assert book.table().row("kimi-k2.5", "USD", NOV) == row


def test_a_damaged_book_is_begun_anew_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    (tmp_path / price_book.NAME).write_text("{")
    assert price_book.load(tmp_path).rows == {}
    price_book.save(tmp_path, settings())
    assert (tmp_path / price_book.NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [price_book.NAME]
