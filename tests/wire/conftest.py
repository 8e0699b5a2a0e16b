from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire.house import House


@pytest.fixture(scope="module")
def shared_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.close()


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    """A gateway and a simulated Kimi, shared by a file's tests and at rest after each."""
    shared_house.tell_sim("DELETE", "/_sim/book")
    yield shared_house
    shared_house.at_rest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
