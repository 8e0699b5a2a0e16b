"""A provider's statement is read whatever its columns are called; what cannot be read is said, with its line."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moongate.core.statement import NAMES, Charged, Statement, StatementError, differences, read_statement


def read(text: str, **more: Any) -> Statement:
    return read_statement(text, **more)


def only(text: str, **more: Any) -> Charged:
    statement = read(text, **more)
    assert statement.problems == ()
    [row] = statement.rows
    return row


def test_a_row_of_one_request() -> None:
    text = (
        "Request ID,Created At,Model,Prompt Tokens,Completion Tokens,Cached Tokens,Cost,Currency,Organization\n"
        "msh-1,2026-11-30T10:00:00Z,kimi-k2.6,93,54,90,0.000231,USD,org-a\n"
    )
    row = only(text)
    assert row == Charged("2026-11-30", "kimi-k2.6", "USD", 231, 1, 93, 54, 90, "msh-1", "org-a")
    assert read(text).by_request


def test_a_sum_of_a_day_in_chinese_with_semicolons_and_a_byte_order_mark() -> None:
    text = "\ufeff\n日期;模型;调用次数;输入Tokens;输出Tokens;金额(元)\n2026/11/30;kimi-k2.6;1,204;9,000;800;￥12.50\n"
    row = only(text)
    assert row == Charged("2026-11-30", "kimi-k2.6", "CNY", 12_500_000, 1204, 9000, 800)
    assert not read(text).by_request


@pytest.mark.parametrize(
    ("head", "amount", "currency", "micro"),
    [
        ("Amount (USD)", "0.5", "USD", 500_000),
        ("cost_cny", "1,234.5", "CNY", 1_234_500_000),
        ("Total", "$0.0123", "USD", 12_300),
        ("Fee", "US$2", "USD", 2_000_000),
        ("Spend", "3 EUR", "EUR", 3_000_000),
        ("费用", "7元", "CNY", 7_000_000),
        ("cost", "0.0000005", "EUR", 0),
        ("cost", "-1", "EUR", -1_000_000),
    ],
)
def test_amounts_and_where_their_currency_is_said(head: str, amount: str, currency: str, micro: int) -> None:
    row = only(f'day\t{head}\n2026-11-30\t"{amount}"\n', currency="EUR")
    assert (row.cost_micro, row.currency) == (micro, currency)


@pytest.mark.parametrize(
    ("written", "offset", "day"),
    [
        ("2026-11-30", 8.0, "2026-11-30"),
        ("2026.11.30", 0.0, "2026-11-30"),
        ("20261130", 8.0, "2026-11-30"),
        ("2026-11-30 03:00:00", 8.0, "2026-11-29"),
        ("2026/11/30 23:00", 0.0, "2026-11-30"),
        ("2026-11-30T03:00:00+08:00", 0.0, "2026-11-29"),
        ("1796083200", 0.0, "2026-12-01"),
        ("1796083200000", 8.0, "2026-12-01"),
    ],
)
def test_days_are_in_utc_where_a_time_is_given(written: str, offset: float, day: str) -> None:
    assert only(f"time,cost\n{written},1\n", currency="USD", offset=offset).day == day


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("yesterday,1,2,USD", '"yesterday" is no day'),
        ("99999999999999999,1,2,USD", "is no day"),
        ("2026-11-30,much,2,USD", '"much" is no amount'),
        ("2026-11-30,,2,USD", '"" is no amount'),
        ("2026-11-30,NaN,2,USD", "is no amount"),
        ("2026-11-30,1,many,USD", '"many" is no count'),
        ("2026-11-30,1,Infinity,USD", "is no count"),
        ("2026-11-30,1,2,", "it says no currency"),
        ("2026-11-30", "is no amount"),
    ],
)
def test_a_line_that_cannot_be_read_is_left_out_and_told(line: str, said: str) -> None:
    statement = read(f"day,cost,prompt,currency\n\n2026-11-30,1,,USD\n{line}\n")
    assert len(statement.rows) == 1
    [problem] = statement.problems
    assert problem.startswith("line 4: ")
    assert said in problem


def test_columns_may_be_named() -> None:
    row = only("When,Paid,Ref\n2026-11-30,1,x\n", columns={"day": "When", "cost": "Paid"}, currency="USD")
    assert row == Charged("2026-11-30", currency="USD", cost_micro=1_000_000)


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        ("", {}, "the file is empty"),
        (" \n\n", {}, "the file is empty"),
        ("when,cost\n", {}, "no column for day among when, cost; write --column day=NAME"),
        ("a,b\n", {}, "--column day=NAME --column cost=NAME"),
        ("day,cost\n", {"price": "cost"}, "there is no column price; known are day"),
        ("day,cost\n", {"cost": "Paid"}, "the file has no column Paid; it has day, cost"),
    ],
)
def test_a_file_that_is_no_statement_says_what_to_write(
    text: str, columns: dict[str, str], said: str
) -> None:
    with pytest.raises(StatementError) as caught:
        read(text, columns=columns)
    assert said in str(caught.value)


def test_a_column_that_was_named_is_nothing_else_besides() -> None:
    row = only("day,cost,id\n2026-11-30,1,org-a\n", columns={"account": "id"}, currency="USD")
    assert (row.account, row.request_id) == ("org-a", "")


def test_an_empty_statement_is_of_no_requests() -> None:
    assert read("day,cost\n") == Statement(())
    assert not Statement(()).by_request


def test_one_column_is_not_taken_for_two() -> None:
    assert only("time,total,id\n2026-11-30,3,x\n", currency="USD").request_id == "x"
    assert len({name for known in NAMES.values() for name in known}) == sum(map(len, NAMES.values()))


def test_a_day_differs_by_model_and_currency_and_they_are_never_added() -> None:
    rows = [Charged("d1", "m", "USD", 10), Charged("d1", "m", "USD", 5), Charged("d1", "m", "CNY", 70)]
    ours = {("d1", "m", "USD"): 12, ("d1", "n", "USD"): 3, ("d9", "m", "USD"): 100}
    assert list(differences(ours, rows)) == [
        ("d1", "m", "CNY", 0, 70),
        ("d1", "m", "USD", 12, 15),
        ("d1", "n", "USD", 3, 0),
    ]


def test_a_statement_without_models_is_held_against_the_whole_day() -> None:
    rows = [Charged("d1", "", "USD", 10)]
    assert list(differences({("d1", "m", "USD"): 4, ("d1", "n", "USD"): 3}, rows)) == [
        ("d1", "", "USD", 7, 10)
    ]


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_does_more_than_be_refused(head: str, body: str) -> None:
    with contextlib.suppress(StatementError):
        read(f"day,cost,{head}\n{body}\n", currency="USD")
