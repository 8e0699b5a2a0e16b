from moongate.core.estimate import estimate


def test_a_token_is_four_bytes_and_a_started_one_counts() -> None:
    assert [estimate(size) for size in (0, 1, 4, 5, 8, 400)] == [0, 1, 1, 2, 2, 100]
