"""Write docs/reference/faults.md from the fault table: `python -m tools.faults_page`."""

from pathlib import Path

from moongate.core.faults import FACTS, Fault, Health, Next, Park, Reach, rule

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "faults.md"

HEAD = """# Faults

Every error that a client can read, and what moongate makes of it. Generated from `core/faults.py`, the only place that
decides any of this.

An error is always `{"error":{"message","type","code","param","request_id"}}`. Before the first byte of an answer it is the
HTTP answer, with `x-should-retry`; after it, it is the last event of the stream, without `[DONE]`. `code` is the table's
first column. SDKs decide by the status and by `x-should-retry`, never by `type`: it is `true` only where nothing can have been
paid. `kimi_network_timeout` also carries `upstream_timeout_ms` and `phase`.

## What each means

| code | status | who erred | cause | may be tried again | what the client reads |
|---|---|---|---|---|---|
"""

STEPS = """
## What follows, by how far the attempt got

`reach` is how far it got: `nothing_sent`, `partly_sent`, `sent` (the whole request), `head` (an answer's head, or a whole
error), `events` (data that may have been delivered). Each cell is what may be done next, and what becomes of the
reservation in the ledger. Causes that are not listed end the call wherever they happen.

| cause | nothing_sent | partly_sent, sent | head | events |
|---|---|---|---|---|
"""

TAIL = """
Next steps: `retry` the next in the route's plan; `at_once` on a new connection; `once` the same, but a second time is final;
`other` another account only; `paced` the next in the plan, for this one said to wait; `successor` the model's declared successor only;
`pay_twice` only on routes with `may_pay_twice`; `resume` continue the stream (not built yet: it ends with an error event);
`never` no more.

An attempt is `released` where there is proof that nothing ran, `ambiguous` where there is none, `estimated` where it ran and
was cut, `reported` where the answer's own usage decides. A cause that pages writes an
error line that begins with `page:` ([runbook](../operate/runbook.md)); one that parks will set the account aside until somebody
looks (not yet).
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(_meaning, Fault)) + STEPS + "".join(_steps()) + TAIL


def _meaning(fault: Fault) -> str:
    facts = FACTS[fault]
    again = "yes, if nothing was sent" if facts.retriable else "no"
    notes = [
        *(["pages"] if facts.page else []),
        *([f"parks the {facts.park.value.replace('_', ' and ')}"] if facts.park is not Park.NOTHING else []),
        *([f"target: {facts.health.value}"] if facts.health is not Health.NEUTRAL else []),
    ]
    cause = f"`{fault.value}`" + (f" ({', '.join(notes)})" if notes else "")
    return f"| `{facts.code}` | {facts.status} | {facts.who.value} | {cause} | {again} | {facts.message} |\n"


def _steps() -> list[str]:
    return [
        f"| `{fault.value}` | {_cell(fault, Reach.NOTHING_SENT)} | {_cell(fault, Reach.SENT)} "
        f"| {_cell(fault, Reach.HEAD)} | {_cell(fault, Reach.EVENTS)} |\n"
        for fault in Fault
        if any(rule(fault, reach).next is not Next.NEVER for reach in Reach)
    ]


def _cell(fault: Fault, reach: Reach) -> str:
    row = rule(fault, reach)
    return f"{row.next.value}, {row.settle.value}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
