"""The command `measure`: what requests in a file measure, and what would be done to them, as a table or as JSON.

Rules. Nobody is called: a window that is not configured stays unknown. What was learned is read from the configured
store. The table tells counts, never content.
"""

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Final, TextIO

import msgspec

from proxy.cli.requests import read_all, terms
from proxy.config import Config
from proxy.context.tokens import Category
from proxy.edge.measuring import measured
from proxy.edge.performer import Measures, Remembers
from proxy.exchange import Measurement, measure
from proxy.exchange.measurement import PlannedEdit

_BAR: Final = 30
"""Characters of a bar that is as long as the window."""

_MOST_EDITS: Final = 20
"""Edits that the table tells one by one."""

_REASONS: Final = MappingProxyType(
    {
        "window_unknown": "the window is not known, so nothing is compacted",
        "under_threshold": "it fits as it is",
        "over_threshold": "it is over the threshold",
        "checkpoint": "what was decided before applies, and that is enough",
        "limit": "a limit applies that holds at any size",
    }
)


async def run(
    requests: Sequence[tuple[str, bytes]],
    config: Config,
    memories: Callable[[str], Remembers],
    tokenizer: Measures,
    out: TextIO,
    *,
    as_json: bool,
) -> None:
    """Write what each request measures; `memories` gives those of an upstream. Raises NoChatRequest."""
    for place, request in read_all(requests):
        known = terms(request, config, tokenizer)
        found = await measured(measure(request, known), memories(known.upstream), tokenizer)
        if as_json:
            out.write(msgspec.json.encode(found).decode() + "\n")
        else:
            title = place if len(requests) > 1 else ""
            out.write("\n".join(_lines(found, title)) + "\n")


# --- the table ----------------------------------------------------------------------------------------------


def _lines(found: Measurement, title: str) -> Iterator[str]:
    if title:
        yield f"== {title}"
    known = (
        "corrected by what the upstream counted" if found.calibrated else "not yet corrected by any answer"
    )
    yield f"model      {found.model or '(none)'}"
    if found.window is None:
        yield "window     unknown; configure `window`, or measure at the running proxy (POST /-/measure)"
    else:
        yield (
            f"window     {found.window:,} tokens ({found.window_source}); threshold {found.threshold_tokens:,},"
            f" target {found.target_tokens:,}, kept for the answer {found.reserve_tokens:,}"
        )
    yield f"expected   {found.request_tokens:,} tokens ({known}; own count {found.estimated_tokens:,})"
    yield ""
    yield from _parts(found)
    yield ""
    yield from _plan(found)


def _parts(found: Measurement) -> Iterator[str]:
    """One row for each part of the prompt, by our own count."""
    by_category = dict.fromkeys(map(str, Category), 0)
    messages = dict.fromkeys(by_category, 0)
    for item in found.items:
        by_category[item.category] += item.tokens
        messages[item.category] += 1
    rows = [("system head", found.system_tokens, ""), ("tools", found.tool_tokens, "")]
    rows += [
        (category.replace("_", " "), tokens, f"{messages[category]} messages")
        for category, tokens in by_category.items()
        if messages[category]
    ]
    whole = found.window or found.estimated_tokens or 1
    for name, tokens, note in rows:
        bar = "#" * min(_BAR, round(_BAR * tokens / whole))
        yield f"{name:<12} {tokens:>9,}  {bar:<{_BAR}}  {note}".rstrip()
    yield f"{'in all':<12} {found.estimated_tokens:>9,}"


def _plan(found: Measurement) -> Iterator[str]:
    plan = found.plan
    yield f"plan       {_REASONS.get(plan.reason, plan.reason)}"
    if not plan.edits:
        beside = "" if plan.actions == "none" else f", but for {plan.actions}"
        yield f"           forwarded as it came{beside}"
        return
    about = "at most " if plan.side_calls else ""
    yield f"           {plan.tokens_before:,} tokens become {about}{plan.tokens_after:,}: {plan.actions}"
    if plan.side_calls:
        yield f"           summaries to be written by the upstream: {plan.side_calls}"
    if not plan.fits:
        yield "           that does not leave the room that is kept for the answer"
    for edit in plan.edits[:_MOST_EDITS]:
        yield f"  {edit.action:<10} {_where(edit):<18} {edit.tokens_before:>9,} -> {edit.tokens_after:,}{_age(edit)}"
    if len(plan.edits) > _MOST_EDITS:
        yield f"  and {len(plan.edits) - _MOST_EDITS} more"


def _where(edit: PlannedEdit) -> str:
    return f"message {edit.first}" if edit.first == edit.last else f"messages {edit.first}-{edit.last}"


def _age(edit: PlannedEdit) -> str:
    return "" if edit.is_new else "  (decided before)"
