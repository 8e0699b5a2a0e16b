"""The control document in SQLite: keys, parks, switches, versions and audit, over several processes."""

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moongate.core.control import Control
from moongate.store.control import FORMAT, ControlError, ControlStore

SECRET = "s" * 43
OTHER = "o" * 43
AT = 1_790_000_000.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(state: Path) -> Iterator[ControlStore]:
    opened = ControlStore.open(state)
    yield opened
    opened.close()


def add(store: ControlStore, tenant: str = "acme", secret: str = SECRET) -> str:
    return store.add_key(tenant, "web", ["kimi-k2.5"], secret, now=AT, who="cli")[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_database_is_empty_and_nobody_elses(store: ControlStore, state: Path) -> None:
    assert store.read() == Control()
    add(store)
    assert mode(state) == 0o700
    assert {path.name: mode(path) for path in state.iterdir()} == {
        "control.db": 0o600,
        "control.db-wal": 0o600,
        "control.db-shm": 0o600,
    }


def test_a_file_that_others_may_read_is_closed_to_them(state: Path) -> None:
    ControlStore.open(state).close()
    (state / "control.db").chmod(0o644)
    ControlStore.open(state).close()
    assert mode(state / "control.db") == 0o600


def test_a_key_is_shown_once_and_only_its_digest_is_kept(store: ControlStore, state: Path) -> None:
    key, entry = store.add_key("acme", "web", ["kimi-k2.5", "kimi-k3"], SECRET, now=AT, who="cli")
    assert key == "mg_" + SECRET
    control = store.read()
    assert control.version == 1
    assert control.find(key, loopback=False) == entry
    assert (entry.tenant, entry.label, entry.routes, entry.created) == (
        "acme",
        "web",
        ("kimi-k2.5", "kimi-k3"),
        AT,
    )
    store.close()
    assert all(SECRET.encode() not in path.read_bytes() for path in state.iterdir())


def test_a_key_without_routes_opens_every_route(store: ControlStore) -> None:
    store.add_key("acme", "", None, SECRET, now=AT, who="cli")
    assert [entry.routes for entry in store.list_keys()] == [None]


def test_keys_are_listed_oldest_first_with_revoked_ones(store: ControlStore) -> None:
    second = store.add_key("b", "", None, SECRET, now=AT + 1, who="cli")[1]
    first = store.add_key("a", "", None, OTHER, now=AT, who="cli")[1]
    store.revoke(first.id, now=AT + 2, who="cli")
    assert [(entry.id, entry.revoked) for entry in store.list_keys()] == [
        (first.id, AT + 2),
        (second.id, None),
    ]


def test_a_revoked_key_opens_nothing_and_stays_revoked(store: ControlStore) -> None:
    key = add(store)
    (entry,) = store.list_keys()
    assert store.revoke(entry.id, now=AT + 1, who="cli").revoked == AT + 1
    assert store.read().find(key, loopback=True) is None
    assert store.revoke(entry.id, now=AT + 9, who="cli").revoked == AT + 1
    assert store.read().version == 2


def test_an_unknown_key_cannot_be_revoked_and_the_nearest_is_named(store: ControlStore) -> None:
    add(store)
    (entry,) = store.list_keys()
    with pytest.raises(ControlError, match=f'did you mean "{entry.id}"'):
        store.revoke(entry.id + "0", now=AT, who="cli")
    assert store.read().version == 1


def test_the_demo_key_is_marked_and_only_the_latest_counts(store: ControlStore) -> None:
    first, _ = store.add_demo_key(SECRET, now=AT, who="make run")
    second, entry = store.add_demo_key(OTHER, now=AT + 1, who="make run")
    assert second == "mg_demo-" + OTHER
    assert entry.demo
    assert entry.tenant == "demo"
    control = store.read()
    assert control.find(first, loopback=True) is None
    assert control.find(second, loopback=True) == entry
    assert control.find(second, loopback=False) is None


@pytest.mark.parametrize(
    ("tenant", "label", "routes", "secret"),
    [
        ("", "", None, SECRET),
        ("a b", "", None, SECRET),
        ("a" * 65, "", None, SECRET),
        ("a", "x\ny", None, SECRET),
        ("a", "x" * 201, None, SECRET),
        ("a", "", [], SECRET),
        ("a", "", None, "short"),
    ],
)
def test_what_cannot_be_is_refused(
    store: ControlStore, tenant: str, label: str, routes: list[str] | None, secret: str
) -> None:
    with pytest.raises(ControlError):
        store.add_key(tenant, label, routes, secret, now=AT, who="cli")
    assert store.read() == Control()


def test_parks_and_switches_are_part_of_the_document(store: ControlStore) -> None:
    store.park("kimi", "no balance", now=AT, who="gateway")
    store.park("kimi", "again", now=AT + 1, who="gateway")
    store.switch("local", "on", now=AT, who="cli")
    store.switch("local", "big", now=AT, who="cli")
    control = store.read()
    assert control.parked["kimi"].reason == "no balance"
    assert control.switches == {"local": "big"}
    assert control.version == 3
    store.unpark("kimi", now=AT, who="cli")
    store.switch("local", None, now=AT, who="cli")
    control = store.read()
    assert (control.parked, control.switches, control.version) == ({}, {}, 5)
    with pytest.raises(ControlError, match="is not parked"):
        store.unpark("kimi", now=AT, who="cli")


def test_every_change_is_one_row_of_the_audit_log_newest_first(store: ControlStore) -> None:
    add(store)
    (entry,) = store.list_keys()
    store.revoke(entry.id, now=AT + 1, who="anna")
    store.park("kimi", "no balance", now=AT + 2, who="gateway")
    rows = [(row.version, row.at - AT, row.who, row.what, row.subject, row.detail) for row in store.audit()]
    assert rows == [
        (3, 2.0, "gateway", "park", "kimi", "no balance"),
        (2, 1.0, "anna", "revoke", entry.id, "tenant acme"),
        (1, 0.0, "cli", "add_key", entry.id, "tenant acme"),
    ]
    assert [row.version for row in store.audit(1)] == [3]


def test_a_change_by_anyone_is_noticed(store: ControlStore, state: Path) -> None:
    assert store.changed()
    store.read()
    assert not store.changed()
    other = ControlStore.open(state)
    key = add(other)
    other.close()
    assert store.changed()
    assert store.read().find(key, loopback=False) is not None
    assert not store.changed()
    store.park("kimi", "", now=AT, who="gateway")
    assert store.changed()


def test_a_change_by_another_process_is_noticed(store: ControlStore, state: Path) -> None:
    store.read()
    code = (
        "import sys, pathlib; from moongate.store.control import ControlStore;"
        "ControlStore.open(pathlib.Path(sys.argv[1])).add_key('a', '', None, 's' * 43, now=1.0, who='cli')"
    )
    subprocess.run([sys.executable, "-c", code, state], check=True)
    assert store.changed()
    assert store.read().version == 1


def test_many_may_make_the_database_at_one_time(state: Path) -> None:
    code = (
        "import sys, pathlib; from moongate.store.control import ControlStore;"
        "ControlStore.open(pathlib.Path(sys.argv[1])).add_key('a', '', None, sys.argv[2] * 43, now=1.0, who='cli')"
    )
    makers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code, state, letter]) for letter in "abcdef"
    ]
    assert [maker.wait() for maker in makers] == [0] * 6
    store = ControlStore.open(state)
    assert store.read().version == len(store.list_keys()) == 6
    store.close()


def test_a_locked_database_says_so_and_can_be_used_afterwards(state: Path) -> None:
    store = ControlStore.open(state, patience=0.0)
    other = sqlite3.connect(state / "control.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ControlError, match=r"is being written by another process; try again"):
        add(store)
    assert store.read() == Control()
    other.execute("ROLLBACK")
    other.close()
    add(store)
    assert store.read().version == 1
    store.close()


def test_an_absent_database_is_not_made_by_who_only_reads(state: Path) -> None:
    with pytest.raises(ControlError, match="there is no control database"):
        ControlStore.open(state, create=False)
    assert not state.exists()
    ControlStore.open(state).close()
    ControlStore.open(state, create=False).close()


def test_a_file_that_is_no_database_says_so(state: Path) -> None:
    state.mkdir()
    (state / "control.db").write_bytes(b"not a database at all, but long enough to be read as a page" * 99)
    with pytest.raises(ControlError, match="is not a control database; move it away"):
        ControlStore.open(state)


def test_a_damaged_database_says_so(state: Path) -> None:
    store = ControlStore.open(state)
    add(store)
    store.close()
    path = state / "control.db"
    page_size = 4096
    content = path.read_bytes()
    assert len(content) > 2 * page_size
    path.write_bytes(content[:page_size] + b"\xff" * (len(content) - page_size))
    with pytest.raises(ControlError, match="is damaged; restore a copy"):
        ControlStore.open(state).read()


def test_a_foreign_or_newer_database_is_left_alone(state: Path) -> None:
    ControlStore.open(state).close()
    with sqlite3.connect(state / "control.db") as other:
        other.execute(f"PRAGMA user_version = {FORMAT + 1}")
    other.close()
    with pytest.raises(ControlError, match="was written by a newer moongate"):
        ControlStore.open(state)
    with sqlite3.connect(state / "control.db") as other:
        other.execute("PRAGMA application_id = 5")
    other.close()
    with pytest.raises(ControlError, match="is a database of something else"):
        ControlStore.open(state)


def test_a_state_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ControlError, match="cannot be opened"):
        ControlStore.open(tmp_path / "file")


def test_a_change_that_fails_half_way_changes_nothing(store: ControlStore) -> None:
    add(store)
    with pytest.raises(ControlError, match="cannot be used"):
        add(store)  # the same secret twice: the digest is unique
    control = store.read()
    assert (control.version, len(control.keys)) == (1, 1)
