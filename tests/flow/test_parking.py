"""An account that Kimi refuses for good gets no further call; another rescues the one that found out."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from moongate.core.control import Parked
from moongate.core.faults import Fault, Reach
from tests.flow.house import WHOLE, Act, Client, House, answers, fails, played
from tests.flow.test_gateway import error_of

REFUSALS = {
    Fault.KIMI_QUOTA_MONTHLY: (503, "kimi_quota_monthly"),
    Fault.KIMI_AUTH_FAILED: (502, "kimi_auth_failed"),
    Fault.KIMI_PERMISSION_DENIED: (502, "kimi_auth_failed"),
}


async def asked(house: House) -> Client:
    client = Client()
    await house.gateway.handle(house.call(), client)
    return client


def targets(house: House) -> list[list[str]]:
    """Whom each call asked."""
    return [[attempt.target for attempt in record.attempts] for record in house.records]


@pytest.mark.parametrize("fault", REFUSALS)
def test_another_account_rescues_the_call_and_has_the_next_ones(tmp_path: Path, fault: Fault) -> None:
    async def story() -> None:
        acts: dict[str, Sequence[Act]] = {"alpha": [fails(fault, Reach.HEAD)], "beta": [answers(WHOLE)] * 3}
        house = House(tmp_path, acts)
        for _ in range(3):
            assert (await asked(house)).body == WHOLE
        assert targets(house) == [["alpha", "beta"], ["beta"], ["beta"]]
        [refused] = house.parking.take()
        assert (refused.target, refused.fault) == ("alpha", fault.value)
        house.at_rest()

    played(story)


@pytest.mark.parametrize("fault", REFUSALS)
def test_without_another_the_call_ends_at_once_as_the_one_that_parked(tmp_path: Path, fault: Fault) -> None:
    async def story() -> None:
        house = House(tmp_path, {"alpha": [fails(fault, Reach.HEAD)]})
        first, second = await asked(house), await asked(house)
        assert (first.status, error_of(first.body)["code"]) == REFUSALS[fault]
        assert second.status == first.status
        for member in ("message", "type", "code"):
            assert error_of(second.body)[member] == error_of(first.body)[member]
        assert targets(house) == [["alpha"], []]
        assert [record.outcome for record in house.records] == ["failed", "refused"]
        assert house.records[1].cause == fault.value
        assert house.records[1].detail == "parked: alpha"
        house.at_rest()

    played(story)


def test_a_release_is_the_last_word(tmp_path: Path) -> None:
    async def story() -> None:
        refusal = fails(Fault.KIMI_QUOTA_MONTHLY, Reach.HEAD)
        house = House(tmp_path, {"alpha": [refusal, answers(WHOLE)]})
        await asked(house)
        house.parking.follow({"alpha": Parked(1.0, "kimi_quota_monthly")})
        assert (await asked(house)).status == 503
        house.parking.follow({})
        assert (await asked(house)).status == 200
        house.at_rest()

    played(story)


def test_other_failures_park_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        house = House(tmp_path, {"alpha": [fails(Fault.KIMI_UNAVAILABLE, Reach.HEAD), answers(WHOLE)]})
        assert (await asked(house)).status == 503
        assert (await asked(house)).status == 200
        assert house.parking.take() == []
        house.at_rest()

    played(story)
