"""What vLLM and SGLang do differently when they serve Kimi's open weights (KIMI.md section 12)."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from moongate.sim.ask import Ask, Body, text_of
from moongate.sim.models import Model
from moongate.sim.reply import invalid
from moongate.sim.rules import weigh


def judge_self_hosted(body: Body, model: Model) -> Ask:
    """The request as a self-hosted server runs it: nothing pinned, no schema check, its own switch."""
    if not body.messages:
        raise invalid("list index out of range")
    if body.temperature is not None and body.temperature < 0:
        raise invalid(f"temperature must be non-negative, got {body.temperature}.")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {body.top_p}.")
    if body.n is not None and body.n < 1:
        raise invalid(f"n must be at least 1, got {body.n}.")
    template = body.chat_template_kwargs
    thinking = not (isinstance(template, dict) and template.get("thinking") is False)
    ask = weigh(body, model, thinking=thinking)
    last = body.messages[-1]
    if body.continue_final_message and last.role == "assistant":
        ask.prefix = text_of(last)
        ask.prefix_reasoning = last.reasoning_content or last.reasoning or ""
    return ask


@dataclass(slots=True)
class Gauges:
    """What a server counts for its metrics page. `room` requests fill its cache."""

    room: int = 64
    running: int = 0
    waiting: int = 0
    queried: int = 0
    hit: int = 0
    ended: Counter[str] = field(default_factory=Counter)

    def started(self, tokens: int, cached: int) -> None:
        """Count what an execution reads."""
        self.queried += tokens
        self.hit += cached


def metrics(face: str, gauges: Gauges, model: str) -> bytes:
    """The metrics page of a face, in Prometheus' text format."""
    label = f'{{model_name="{model}"}}'
    use = min(gauges.running / gauges.room, 1.0)
    rate = gauges.hit / gauges.queried if gauges.queried else 0.0
    rows: list[tuple[str, str, Any]]
    if face == "sglang":
        rows = [
            ("sglang:num_running_reqs", "gauge", gauges.running),
            ("sglang:num_queue_reqs", "gauge", gauges.waiting),
            ("sglang:token_usage", "gauge", use),
            ("sglang:cache_hit_rate", "gauge", rate),
        ]
        info = f'sglang:cache_config_info{{page_size="64",num_pages="4096",model_name="{model}"}} 1.0\n'
    else:
        rows = [
            ("vllm:num_requests_running", "gauge", gauges.running),
            ("vllm:num_requests_waiting", "gauge", gauges.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", use),
            ("vllm:prefix_cache_queries_total", "counter", gauges.queried),
            ("vllm:prefix_cache_hits_total", "counter", gauges.hit),
            ("vllm:request_success_total", "counter", gauges.ended["completed"]),
            ("vllm:num_preemptions_total", "counter", 0),
        ]
        info = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="4096",model_name="{model}"}} 1.0\n'
    lines = [f"# TYPE {name} {kind}\n{name}{label} {float(value)}\n" for name, kind, value in rows]
    return ("".join(lines) + info).encode()
