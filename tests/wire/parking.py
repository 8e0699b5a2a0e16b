"""What is parked in a house, and having it asked again."""

import json

from tests.wire.house import House, get, until


def parks(house: House) -> dict[str, str]:
    """What is parked, and why."""
    shown = json.loads(get(house.admin, "/api/parks")[1])["parks"]
    return {park["name"]: park["reason"] for park in shown}


def release(house: House) -> None:
    """Have what a call has just had parked be asked again, by every worker."""
    for name in until(20, lambda: parks(house), "something is parked"):
        done = house.command("parks", "release", name, "--state", str(house.state))
        assert done.returncode == 0, done.stderr
    until(20, lambda: not parks(house), "nothing is parked")
    house.metrics()  # told on the same channel, after the release
