"""How a request is rendered, and where the published templates are found."""

from pathlib import Path
from typing import Any

import pytest

from tests.templates.published import PUBLISHED, File, folder, published, source
from tests.templates.render import Form, Refused, template
from tests.templates.talks import calls, results

USER = {"role": "user", "content": "Is 1 < 2 & 'so'?"}


def rendered(text: str, *messages: object, **members: Any) -> str | Refused:
    return template("made up", text).judge({"messages": list(messages) or [USER], **members})


def test_blocks_leave_no_space_and_no_line_behind() -> None:
    assert (
        rendered("{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}")
        == "user\n"
    )


def test_json_is_written_as_it_is_and_not_for_a_page() -> None:
    assert rendered("{{ messages[0].content | tojson }}") == "\"Is 1 < 2 & 'so'?\""
    assert rendered("{{ {'é': 1} | tojson(indent=1) }}") == '{\n "é": 1\n}'


def test_loops_can_be_left_and_continued() -> None:
    skip, leave = "{% if n == 1 %}{% continue %}{% endif %}", "{% if n == 3 %}{% break %}{% endif %}"
    assert rendered("{% for n in range(9) %}" + skip + leave + "{{ n }}{% endfor %}") == "02"


def test_what_is_marked_as_generated_stays_in_the_prompt() -> None:
    assert rendered("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c") == "abuserc"


def test_today_is_always_the_same_day() -> None:
    assert rendered("{{ strftime_now('%d %b %Y') }}") == "02 Jan 2025"


def test_a_raised_exception_is_a_refusal_in_its_words() -> None:
    assert rendered("{{ raise_exception('No, thank you.') }}") == Refused("No, thank you.")


@pytest.mark.parametrize(
    "text",
    [
        "{{ nothing.there }}",
        "{{ 'a' + 1 }}",
        "{{ 'a'.index('b') }}",
        "{{ 1 | map | list }}",
        "{{ [][0] + 'a' }}",
    ],
)
def test_a_template_that_breaks_refuses(text: str) -> None:
    assert isinstance(rendered(text), Refused)


@pytest.mark.parametrize("text", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}"])
def test_a_template_reaches_nothing_and_changes_nothing(text: str) -> None:
    assert isinstance(rendered(text), Refused)


@pytest.mark.parametrize(
    "message", [{}, {"role": "user", "content": [{"kind": "odd"}]}, {"content": "no role"}, 7]
)
def test_a_message_that_is_none_is_refused(message: object) -> None:
    assert isinstance(rendered("{{ messages[0].content }}", message), Refused)


def test_the_prompt_goes_on_where_the_client_began_the_answer() -> None:
    text = "{{ add_generation_prompt }}"
    assert rendered(text) == "True"
    assert rendered(text, USER, {"role": "assistant", "content": "It"}) == "False"


def test_parts_of_text_become_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert rendered("{{ messages[0].content }}", {"role": "user", "content": parts}) == "one\ntwo"


@pytest.mark.parametrize(
    ("name", "takes"), [("Mistral Small 3.2", True), ("Gemma 3", True), ("Qwen 3", False), ("Llama 2", False)]
)
def test_pictures_are_for_templates_that_know_of_parts(name: str, takes: bool) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    message = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}
    said = published(name).judge({"messages": [message]})
    assert isinstance(said, str) is takes
    assert said == Refused("this model takes text alone") or "What is this?" in str(said)


def test_a_developer_is_a_system_to_templates_that_know_none() -> None:
    developer = {"role": "developer", "content": ""}
    assert rendered("{{ messages[0].role }}", developer) == "system"
    assert rendered("{{ messages[0].role }}{# developer #}", developer) == "developer"


@pytest.mark.parametrize(
    ("reads", "form"),
    [
        ("c.function.arguments.a", Form()),
        ("c.function.arguments | tojson if m.content is none", Form(nulls=True)),
        ("'' + c.function.arguments", Form(objects=False)),
        ("'' + c.function.arguments if m.content is none", Form(objects=False, nulls=True)),
    ],
)
def test_calls_are_given_in_the_form_in_which_a_template_shows_them(reads: str, form: Form) -> None:
    text = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ " + reads + " }}{% endfor %}{% endfor %}"
    )
    assert template("made up", text).form == form
    assert "file1p0" in str(rendered(text.replace(".a ", ".path "), calls(1, 1), *results(1, 1)))


def test_a_template_that_shows_no_calls_is_given_them_all_the_same() -> None:
    assert template("made up", "{{ messages | length }}").form == Form()
    assert rendered("{{ messages | length }}", calls(1, 1), *results(1, 1)) == "2"


def test_an_empty_list_of_calls_is_none() -> None:
    message = {"role": "assistant", "content": "a", "tool_calls": []}
    assert rendered("{{ 'tool_calls' in messages[0] }}", message) == "False"


# --- what is published --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_template_makes_a_prompt_of_a_question(name: str) -> None:
    prompt = published(name).judge({"messages": [USER]})
    assert isinstance(prompt, str)
    assert str(USER["content"]) in prompt


def test_a_template_that_is_another_than_it_was_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "changed.jinja").write_text("{{ messages }}")
    with pytest.raises(pytest.fail.Exception, match=r"^changed\.jinja is another template than it was"):
        source(File("changed", "0" * 64), tmp_path)


def test_without_the_templates_a_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^the package no_such_package, .* is not installed"):
        folder("no_such_package")


def test_without_the_templates_a_test_fails_where_all_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"^the package no_such_package, .* is not installed"):
        folder("no_such_package")
