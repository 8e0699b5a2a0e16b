"""Calls go to the replica with room, and on to the busy one where it fails."""

from pathlib import Path

from moongate.core.faults import Fault, Reach
from tests.flow.house import WHOLE, Client, House, answers, fails, played


def test_the_least_busy_replica_is_asked_first_and_the_others_rescue(tmp_path: Path) -> None:
    async def story() -> None:
        idle = [answers(WHOLE), fails(Fault.KIMI_UNAVAILABLE, Reach.HEAD)]
        house = House(tmp_path, {"busy": [answers(WHOLE)] * 2, "idle": idle})
        house.replicas.follow({"busy": 4.0, "idle": 0.1})
        for _ in range(2):
            client = Client()
            await house.gateway.handle(house.call(), client)
            assert client.body == WHOLE
        house.replicas.follow({})
        await house.gateway.handle(house.call(), Client())
        asked = [[attempt.target for attempt in record.attempts] for record in house.records]
        assert asked == [["idle"], ["idle", "busy"], ["busy"]]
        house.at_rest()

    played(story)
