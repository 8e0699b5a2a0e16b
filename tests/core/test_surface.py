"""The chat surface keeps the interface; what readers hand out is not shared between them."""

from moongate.core.chat import CHAT
from moongate.core.faults import Fault
from moongate.core.surface import Answer, Step, StreamReader, Surface, ToolCall


def never(_status: int, _text: bytes) -> Fault:
    raise AssertionError


def test_chat_is_a_surface_and_makes_stream_readers() -> None:
    surface: Surface = CHAT
    reader: StreamReader = surface.stream_reader(strip_usage=True, classify=never)
    assert surface.name == "chat"
    assert reader.answer() == Answer()


def test_nothing_has_happened_until_it_is_said() -> None:
    assert Step() == Step(out=b"", beats=0, failure=None, done=False)
    one, other = Answer(), Answer()
    one.tool_calls.append(ToolCall(0))
    assert other.tool_calls == []
    assert one.finish == "", "an answer is not complete until it says how it ended"
    assert one.usage is None
