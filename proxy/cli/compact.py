"""The command `compact`: requests in a file with their older part summarised, as JSON or told in words.

Rules. The summary is asked of the configured upstream, with its configured key; nothing else is sent. The words show
the summary, which was asked for, and counts; the messages themselves are in the JSON. A summary that could not be had
is a failure of the command, after everything was written.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TextIO

import msgspec

from proxy.cli.requests import read_all, terms, upstream_of
from proxy.config import Config
from proxy.edge.compacting import compacted
from proxy.edge.routes import Site
from proxy.edge.sidecalls import Origin
from proxy.exchange import Compaction, compact

_REASONS: Final = MappingProxyType(
    {
        "compacted": "the older part is summarised",
        "checkpoint": "what was decided before applies; nothing more is to be summarised",
        "side_call_failed": "no summary was to be had, so nothing was taken away",
        "nothing_to_compact": "there is no older part that a summary would make smaller",
    }
)


_PERHAPS_TOO_LONG: Final = frozenset({"status_400", "status_413", "status_422", "status_500"})


async def run(
    requests: Sequence[tuple[str, bytes]],
    config: Config,
    sites: Mapping[str, Site],
    out: TextIO,
    *,
    as_json: bool,
) -> bool:
    """Write what each request becomes; whether every summary was to be had. Raises NoChatRequest."""
    is_whole = True
    for place, request in read_all(requests):
        around = sites[upstream_of(request, config)].around
        known = terms(request, config, around.tokenizer)
        who = f"{known.tenant}:{request.model}"
        found = await compacted(compact(request, known), around, Origin((), "", ""), who)
        if as_json:
            out.write(msgspec.json.encode(found).decode() + "\n")
        else:
            title = place if len(requests) > 1 else ""
            out.write("\n".join(_lines(found, title)) + "\n")
        is_whole = is_whole and found.reason != "side_call_failed"
    return is_whole


def _lines(found: Compaction, title: str) -> Iterator[str]:
    if title:
        yield f"== {title}"
    yield f"model      {found.model or '(none)'}"
    yield f"outcome    {_REASONS[found.reason]}"
    yield f"tokens     {found.tokens_before:,} -> {found.tokens_after:,} ({found.actions})"
    for call in found.side_calls:
        counts = [
            f"{tokens:,} {name}"
            for name, tokens in (("in", call.prompt_tokens), ("out", call.completion_tokens))
            if tokens is not None
        ]
        yield f"side call  {call.outcome}; tokens: {', '.join(counts) or 'not told'}"
    if any(call.outcome in _PERHAPS_TOO_LONG for call in found.side_calls):
        yield "           a model that refuses may have been shown too much: tell its window with --window"
    if found.covers and found.summary:
        yield f"summary    of {found.covers.messages} messages, {found.covers.first} to {found.covers.last}:"
        yield ""
        yield found.summary
