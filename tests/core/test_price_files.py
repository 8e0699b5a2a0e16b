"""Prices in files of their own: the same rows, checked in the same way, each mistake with the file it is in."""

import pytest

from moongate.core.mistakes import SettingsError
from moongate.core.pricing import prices_of
from moongate.core.reading import load
from moongate.core.settings import Settings

NOV = 1_796_000_000.0
FILES = {
    "own.yaml": "prices:\n  - {model: kimi-k2.6, currency: CNY, since: 2026-11-01, hit: 1, miss: 6, output: 25}\n",
    "gpu.yaml": "prices: [{miss: 0.02, output: 0.05}]\n",
    "empty.yaml": "",
    "none.yaml": "prices:\n",
    "wrong.yaml": "listen: x\nprices:\n  - {miss: 1, output: 2, hit: 3}\n  - {miss: -1, output: 2}\n",
    "bad.yaml": "prices: [",
}


def read_file(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path]


def read(text: str) -> Settings:
    return load(text, origin="m.yaml", read_env={"MOONSHOT_API_KEY": "k"}.get, read_file=read_file)


def refused(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(text)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_a_price_file_is_read_with_the_settings_and_what_is_written_in_place_wins() -> None:
    settings = read("prices_file: own.yaml\n")
    [row] = settings.prices
    assert (row.model, row.hit, row.miss, row.output) == ("kimi-k2.6", 1_000_000, 6_000_000, 25_000_000)
    inline = "prices: [{model: kimi-k2.6, currency: CNY, since: 2026-11-01, miss: 7, output: 8}]\n"
    both = read("prices_file: own.yaml\n" + inline)
    found = prices_of(both).row("kimi-k2.6", "CNY", NOV)
    assert found is not None
    assert (found.miss, found.own) == (7_000_000, True)


def test_a_target_has_a_price_file_of_its_own() -> None:
    settings = read("targets: {own: {url: 'http://gpu:8000/v1', dialect: vllm, prices_file: gpu.yaml}}\n")
    row = prices_of(settings).row("moonshotai/Kimi-K2.5", "USD", NOV, "own")
    assert row is not None
    assert (row.model, row.hit, row.output) == ("*", 20_000, 50_000)


def test_every_mistake_in_a_price_file_names_the_file_and_the_line() -> None:
    found = refused("targets: {own: {url: 'http://gpu:8000/v1', prices_file: wrong.yaml}}\n")
    assert len(found) == 3
    assert found[0].startswith("wrong.yaml:1:1: listen: has no meaning in a price file; write `prices` alone")
    assert found[1].startswith("wrong.yaml:3:31: prices[0].hit: is more than `miss`")
    assert found[2].startswith("wrong.yaml:4:12: prices[1].miss: -1 is not an amount")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("gone.yaml", 'm.yaml:1:14: prices_file: "gone.yaml" cannot be read (No such file or directory)'),
        ("empty.yaml", "empty.yaml:1:1: there are no prices in it"),
        ("none.yaml", "none.yaml:1:1: there are no prices in it"),
        ("bad.yaml", "bad.yaml:2:1: not YAML"),
        ("gpu.yaml", "gpu.yaml:1:10: prices[0]: needs `model`"),
    ],
)
def test_a_file_that_gives_no_prices_is_a_mistake(file: str, said: str) -> None:
    assert refused(f"prices_file: {file}\n")[0].startswith(said)
