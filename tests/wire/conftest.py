from collections.abc import Iterator

import pytest

from tests.wire.house import House


@pytest.fixture(scope="module")
def shared_house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One pair of processes for a file, which may say `SETTINGS` and `HOSTS`."""
    file = request.module
    house = House(
        tmp_path_factory.mktemp("house"), getattr(file, "SETTINGS", ""), getattr(file, "HOSTS", None)
    )
    yield house
    house.close()


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    """A gateway and a simulated Kimi, shared by a file's tests and at rest after each."""
    shared_house.begin()
    yield shared_house
    shared_house.at_rest()
