"""How the demonstration's upstream weighs a prompt, on small sums that can be done by hand.

Rules. Where the price of framing is meant, a word is a token; where vocabulary matters, o200k counts.
"""

import json

from proxy.demo.counting import measure, remembering
from tests.peers.chats import PICTURE, SAID, TOOL, USER, asks, chat, result
from tests.peers.tokens import o200k


def words(text: str) -> int:
    return len(text.split())


def test_a_message_costs_three_tokens_its_role_and_all_that_a_model_sees() -> None:
    plain = chat({"role": "user", "content": "one two"})
    assert measure(plain, words).total == 3 + (3 + 1 + 2)
    named = chat({"role": "user", "name": "ann", "content": [{"type": "text", "text": "one two"}]})
    assert measure(named, words).total == measure(plain, words).total + 1 + 1
    thought = chat(asks("a") | {"reasoning_content": "hm hm", "content": "so"})
    assert measure(thought, words).total == 3 + (3 + 1 + 2 + 1 + 3 + len(["read", "{}"]))


def test_ids_and_base64_weigh_nothing_and_a_picture_its_flat_price() -> None:
    assert measure(chat(result("a")), words) == measure(chat(result("a " * 999)), words)
    picture = chat({"role": "user", "content": [PICTURE]})
    assert measure(picture, words).total == 3 + 3 + 1 + 765
    small = {"type": "image_url", "image_url": {"url": "x", "detail": "low"}}
    assert measure(chat({"role": "user", "content": [small]}), words).total == 3 + 3 + 1 + 85


def test_b47_tools_functions_and_the_answers_schema_weigh_a_share_of_their_json() -> None:
    text = json.dumps([TOOL], separators=(",", ":"))
    tokens = -(-65 * o200k(text) // 100)
    assert measure(chat(USER, tools=[TOOL]), o200k).tools == tokens
    assert measure(chat(USER, functions=[TOOL]), o200k).tools == tokens
    schema = {"type": "json_schema", "json_schema": [TOOL]}
    assert measure(chat(USER, response_format=schema), o200k).tools == tokens


def test_b49_a_server_may_count_by_another_vocabulary_and_hide_tokens() -> None:
    plain = measure(chat(USER), o200k).total
    assert measure(chat(USER), o200k, factor=1.5).total == -(-3 * plain // 2)
    assert measure(chat(USER), o200k, hidden=300).total == plain + 300


def test_a_remembering_count_counts_each_text_once() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    remembered = remembering(count)
    first = measure(chat(USER, SAID), remembered)
    assert measure(chat(USER, SAID), remembered) == first
    assert len(counted) == len(set(counted)) == 4
