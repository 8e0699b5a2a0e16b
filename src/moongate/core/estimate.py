"""Token counts where the provider gave none."""


def estimate(size: int) -> int:
    """Tokens in `size` bytes of UTF-8 text: a quarter, rounded up (KIMI.md section 11: mostly within 25 %)."""
    return -(-size // 4)
