"""Fixtures of the simulator's tests."""

import asyncio
from collections.abc import Iterator

import pytest
import uvloop

from tests.sim import world


@pytest.fixture(params=["asyncio", "uvloop"])
def both_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test once on each event loop that the simulator may find itself in."""
    world.LOOP.append(uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop)
    yield
    world.LOOP.pop()
