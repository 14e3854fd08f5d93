"""What the model behind the proxy says: it has the client read a book page by page, and ends with what was asked for.

Rules. It counts its own steps, so that a client that loses its history cannot lead it astray. Requests that name no
tool are a client's own small questions, a title for the chat say, and get a short answer that counts for nothing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.integration.clients.programs.book import ANSWER, PAGES, page
from tests.peers.upstream import Message, call_message, text_message

PAIR_EVERY = 5
_NOTE = "I have noted the birds of the day. "


def by_page(number: int) -> Mapping[str, object]:
    return {"number": number}


@dataclass(slots=True)
class Reader:
    """Calls a tool for page after page, for two at once at each fifth step, and says the answer behind the last.

    tool       the tool's name
    arguments  what it is called with for a page
    last       the message behind the last page; by default a text
    pairs      whether two pages are ever asked for at once
    speaks     whether there is text beside the calls; models that owe a structure say none
    """

    tool: str = "read_page"
    arguments: Callable[[int], Mapping[str, object]] = by_page
    last: Message | None = None
    pages: int = PAGES
    pairs: bool = True
    speaks: bool = True
    page: int = 0
    step: int = 0

    def __call__(self, body: Mapping[str, Any]) -> Message:
        if not body.get("tools"):
            return text_message("Reading a book")
        if self.page >= self.pages:
            self.page = 0
            return self.last or text_message(ANSWER)
        self.step += 1
        many = 2 if self.pairs and self.step % PAIR_EVERY == 0 and self.page + 1 < self.pages else 1
        numbers = range(self.page + 1, self.page + 1 + many)
        self.page += many
        calls = [(f"call{number:05d}", self.tool, json.dumps(self.arguments(number))) for number in numbers]
        return call_message(*calls, text=f"Step {self.step}: {_NOTE * 8}I read on." if self.speaks else None)


@dataclass(slots=True)
class Coder:
    """Writes a line of Python that reads the next page, for agents that run what is written."""

    pages: int = PAGES
    page: int = 0

    def __call__(self, body: Mapping[str, Any]) -> Message:
        self.page += 1
        line = f"print(read_page({self.page}))" if self.page <= self.pages else f"final_answer({ANSWER!r})"
        return text_message(f"Thought: {_NOTE * 4}I read on.\n<code>\n{line}\n</code>")


@dataclass(slots=True)
class Writer:
    """Writes a file anew with each answer, in the form that aider takes a whole file in, and commit messages for it."""

    file: str
    edition: int = 0

    def __call__(self, body: Mapping[str, Any]) -> Message:
        if "commit message" in str(body["messages"][0]["content"]).lower():
            return text_message("docs: note the birds of the day")
        self.edition += 1
        return text_message(f"Here it is.\n\n{self.file}\n```\n{self.text(self.edition)}```\n")

    @staticmethod
    def text(edition: int) -> str:
        """What the file holds then."""
        return f"Edition {edition}.\n{page(edition)}\n"
