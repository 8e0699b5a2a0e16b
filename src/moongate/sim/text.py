"""Text that follows from a key: the same key gives the same words, token by token.

A generated token is one piece: an English word with the space before it, or two Chinese characters. A given
text is cut into pieces of at most four characters. Tokens of the *input* are counted, not generated: `count`
is a quarter of the UTF-8 bytes, rounded up (KIMI.md section 11 measures that rule to within 25 % of Kimi's
own tokeniser).
"""

import random
from functools import cache
from hashlib import sha256
from typing import Final

_ENGLISH_WORDS: Final = """
moon gate river light stone quiet open small water bright answer number paper garden letter morning window
common simple careful steady narrow winter summer market engine signal measure balance current distance
pattern question reason result season shadow silver station story surface teacher thread travel valley
village wheel writer yellow anchor bridge candle driver eastern factor gentle harbor island journey kernel
ladder mirror northern object picture record second thunder useful visible weather and the with from over
under between within about after before while because when where that this each every other another
"""
_CHINESE_WORDS: Final = """
月亮 大门 河流 光明 石头 安静 打开 微小 清水 明亮 回答 数字 纸张 花园 书信 早晨 窗户
普通 简单 仔细 稳定 狭窄 冬天 夏天 市场 引擎 信号 测量 平衡 电流 距离 模式 问题 原因
结果 季节 影子 银色 车站 故事 表面 老师 线索 旅行 山谷 村庄 轮子 作者 黄色 船锚 桥梁
蜡烛 司机 东方 因素 温和 港口 岛屿 旅程 内核 梯子 镜子 北方 对象 图画 记录 第二 雷声
有用 可见 天气 以及 我们 他们 从前 以后 因为 所以 如果 那么 每个 其他
"""
_ENGLISH: Final = tuple(_ENGLISH_WORDS.split())
_CHINESE: Final = tuple(_CHINESE_WORDS.split())
_SENTENCE: Final = 9
_MASK: Final = 16_383
_HAN: Final = (0x4E00, 0x9FFF)


def count(text: str) -> int:
    """Tokens that a text costs as input: UTF-8 bytes divided by four, rounded up."""
    return (len(text.encode("utf-8", "surrogatepass")) + 3) // 4


def key_of(*parts: bytes) -> int:
    """A 64-bit key that depends on every part and on where one part ends and the next begins."""
    digest = sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return int.from_bytes(digest.digest()[:8], "big")


def derived(key: int, *parts: str) -> int:
    """A key of its own for a part of what belongs to a key."""
    return key_of(b"%x" % key, *(part.encode("utf-8", "surrogatepass") for part in parts))


def is_chinese(text: str) -> bool:
    """Whether a text has a Han character within its first or last 200 characters."""
    sample = text if len(text) <= 400 else text[:200] + text[-200:]
    if sample.isascii():
        return False
    return any(_HAN[0] <= ord(char) <= _HAN[1] for char in sample)


def generate(key: int, tokens: int, *, chinese: bool) -> list[str]:
    """The first `tokens` pieces of the endless text that belongs to a key.

    Asking for fewer gives a prefix of asking for more, except that nothing marks the end: a text stops where
    its length says. A full stop closes every ninth piece.
    """
    table = _table(chinese=chinese)
    at, step = key & _MASK, key >> 16 & _MASK | 1
    if chinese:
        words = [table[at + index * step & _MASK] for index in range(tokens)]
        for index in range(_SENTENCE - 1, tokens, _SENTENCE):
            words[index] += "。"
        return words
    pieces = [table[at + index * step & _MASK] for index in range(tokens)]
    for index in range(0, tokens, _SENTENCE):
        pieces[index] = f" {pieces[index][1:].capitalize()}"
    for index in range(_SENTENCE - 1, tokens, _SENTENCE):
        pieces[index] += "."
    if pieces:
        pieces[0] = pieces[0][1:]
    return pieces


@cache
def _table(*, chinese: bool) -> list[str]:
    """Words in a fixed random order; a text walks through them from a place and by a step of its own."""
    dice = random.Random(1)  # noqa: S311 - words, not secrets
    if chinese:
        return dice.choices(_CHINESE, k=_MASK + 1)
    return [" " + word for word in dice.choices(_ENGLISH, k=_MASK + 1)]


def cut(text: str, size: int = 4) -> list[str]:
    """A given text as pieces of `size` characters, the last one shorter."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def after_prefix(pieces: list[str], prefix: str) -> list[str] | None:
    """What follows `prefix` in a text given as pieces; None where the text does not begin with it.

    A prefix that ends inside a piece leaves the rest of that piece as the first one.
    """
    at = 0
    for index, piece in enumerate(pieces):
        if at == len(prefix):
            return pieces[index:]
        if prefix.startswith(piece, at):
            at += len(piece)
            continue
        rest = prefix[at:]
        if piece.startswith(rest):
            return [piece[len(rest) :], *pieces[index + 1 :]]
        return None
    return [] if at == len(prefix) else None
