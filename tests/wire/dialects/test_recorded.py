"""Every error that was recorded from a real upstream is read as it was meant, and so are real servers' answers.

Rules. Bodies come as a client would meet them: what stood in a stream goes through the observer of streams first.
Without the recorded data these tests are skipped; the excerpts beside this file hold the same without it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.wire.dialects import Overflow, Rank, best, classify, classify_event, says_nothing
from proxy.wire.sse import Observer

FOLDER: Final = Path(
    os.environ.get("TRANSOM_SHARED_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")
)
ERRORS: Final = FOLDER / "overflow_errors.jsonl"

# A refusal without a body means a full context with one provider and anything with the others: it is recognised only
# by a caller that knows the prompt to be near the window.
WORDLESS: Final = frozenset({"e142"})


def lines() -> list[Any]:
    if not ERRORS.is_file():
        reason = f"no recorded errors at {ERRORS}; TRANSOM_SHARED_DATA says where the data is"
        return [pytest.param({}, marks=pytest.mark.skip(reason=reason), id="none")]
    recorded = [json.loads(line) for line in ERRORS.read_text(encoding="utf-8").splitlines()]
    return [pytest.param(line, id=f"{line['id']}-{line['server']}") for line in recorded]


def body_of(line: Mapping[str, Any]) -> bytes:
    body = line["body"]
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def read(line: Mapping[str, Any]) -> Overflow | None:
    body = body_of(line)
    if line["delivery"] != "sse_200":
        return classify(line["status"], body)
    watch = Observer()
    watch.feed(body)
    watch.end()
    return classify_event(watch.error) if watch.error else None


@pytest.mark.parametrize("line", lines())
def test_b64_b65_a_recorded_error_is_read_as_it_was_meant(line: Mapping[str, Any]) -> None:
    said = read(line)
    if line["id"] in WORDLESS:
        assert said is None
        assert says_nothing(line["status"], body_of(line))
        return
    assert (said is not None) == line["is_context_overflow"]
    if said is not None:
        told = (said.window, said.prompt, said.completion)
        assert told == (line["window"], line["prompt_tokens"], line["completion_tokens"])


def exchanges(shared_data: Path) -> Iterator[tuple[str, int, bytes, object]]:
    """Name, status, body and decoded body of every recorded answer of a real server."""
    for path in sorted((shared_data / "recorded").glob("*/*.json")):
        response = json.loads(path.read_text(encoding="utf-8")).get("response") or {}
        if isinstance(response.get("status"), str):
            value = response.get("json", response.get("text"))
            body = (value if isinstance(value, str) else json.dumps(value)).encode()
            yield f"{path.parent.name}/{path.stem}", int(response["status"].split()[1]), body, value


def test_b61_of_real_servers_answers_just_the_overflows_are_recognised(shared_data: Path) -> None:
    refused: dict[str, Overflow] = {}
    for name, status, body, _ in exchanges(shared_data):
        said = classify(status, body)
        named = "maximum context length is" in body.decode() or "exceed_context_size_error" in body.decode()
        assert (said is not None) == (named and status == 400), name
        if said is not None:
            refused[name] = said
    assert refused["bin-b11434-np2-c4096/overflow"] == Overflow("llamacpp", 2048, 3030)
    assert refused["vllm-0.32.0-c4096/07-overflow"].window == 4096
    assert refused["bin-b11434-np1-c512/boundary-prompt-512"] == Overflow("llamacpp", 512, 512)


@pytest.mark.parametrize(
    ("folder", "names", "model", "tokens", "rank"),
    [
        ("vllm-0.32.0-c4096", ("01-get_v1_models", "01-get_props"), "qwen2.5-coder-0.5b", 4096, Rank.SERVED),
        ("xll-b11549-np1-c4096", ("01-get_v1_models", "01-get_props", "01-get_slots"), "x", 4096, Rank.SLOT),
        ("bin-b11434-np2-c4096", ("get_v1_models", "get_props", "get_slots"), "q", 2048, Rank.SLOT),
        ("bin-b11434-np2-c4096", ("get_v1_models",), "q", 2048, Rank.LOADED),
    ],
)
def test_b61_real_servers_tell_their_window(
    shared_data: Path, folder: str, names: tuple[str, ...], model: str, tokens: int, rank: Rank
) -> None:
    values = {name: value for name, _, _, value in exchanges(shared_data)}
    probes = {"models": "GET v1/models", "props": "GET /props", "slots": "GET /slots"}
    answers = {probes[name.rsplit("_", 1)[1]]: values[f"{folder}/{name}"] for name in names}
    found = best(answers, model)
    assert found is not None
    assert (found.tokens, found.rank) == (tokens, rank)
