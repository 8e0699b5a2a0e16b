"""Damage costs only the frames it touches; nothing else is taken for a frame."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moongate.store import frames
from moongate.store.frames import Kind
from tests.stores.journals import OWNER

PAYLOADS = st.lists(st.binary(max_size=60), min_size=1, max_size=12)


@settings(max_examples=200)
@given(PAYLOADS, st.data())
def test_any_damage_costs_only_the_records_it_touches(written: list[bytes], data: st.DataObject) -> None:
    seed = frames.seed(OWNER)
    packed = [frames.pack(seed, number, Kind.SENT, payload) for number, payload in enumerate(written, 1)]
    whole = b"".join(packed)
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin + 1, min(len(whole), begin + 90)))
    noise = data.draw(st.binary(min_size=end - begin, max_size=end - begin))
    bent = whole[:begin] + noise + whole[end:]
    found, gaps, stop = frames.scan(bent, seed, 0)
    expected, at = [], 0
    for number, frame in enumerate(packed, 1):
        if bent[at : at + len(frame)] == frame:
            expected.append((number, written[number - 1]))
        at += len(frame)
    assert [(frame.sequence, frame.payload) for frame in found] == expected
    covered = sum(gap.end - gap.start for gap in gaps) + sum(frames.OVERHEAD + len(f.payload) for f in found)
    assert covered == stop <= len(bent)


@given(st.binary(max_size=400), st.integers(0, 2**40))
def test_noise_holds_no_records(noise: bytes, after: int) -> None:
    assert frames.scan(noise, frames.seed(OWNER), after) == ([], [], 0)


def test_frames_made_up_inside_a_record_are_not_believed() -> None:
    forged = frames.pack(frames.seed("somebody else"), 2, Kind.CLOSED, b"forged")
    frame = bytearray(frames.pack(frames.seed(OWNER), 1, Kind.SENT, b"user " + forged))
    frame[5] ^= 1
    assert frames.scan(bytes(frame), frames.seed(OWNER), 0)[0] == []


def test_sequences_beyond_four_billion_are_found_again() -> None:
    seed, start = frames.seed(OWNER), (1 << 32) - 2
    packed = [frames.pack(seed, start + number, Kind.SENT, b"x") for number in range(4)]
    found, _, _ = frames.scan(packed[0] + b"bad" + packed[2] + b"bad" + packed[3], seed, start - 1)
    assert [frame.sequence - start for frame in found] == [0, 2, 3]
