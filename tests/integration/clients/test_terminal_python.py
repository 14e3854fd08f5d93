"""Agents for the terminal that are written in Python, run without a terminal in a folder with a book in it."""

import json
import subprocess
from pathlib import Path

from tests.integration.clients.folders import with_book
from tests.integration.clients.models import Reader, Writer
from tests.integration.clients.programs.book import ANSWER, TASK
from tests.integration.clients.rooms import PythonRoom
from tests.integration.clients.stage import staged
from tests.peers.upstream import call_message

MINI = PythonRoom("mini-swe-agent", ("mini-swe-agent==2.4.6",))
AIDER = PythonRoom("aider", ("aider-chat==0.86.2",))

SUBMIT = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{ANSWER}'"


async def test_mini_swe_agent_reads_the_book_and_submits(tmp_path: Path) -> None:
    command = str(MINI.scripts / "mini")
    quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    unpriced = {"MSWEA_COST_TRACKING": "ignore_errors"}
    reader = Reader(
        tool="bash",
        arguments=lambda number: {"command": f"cat pages/{number}.txt"},
        last=call_message(("calldone", "bash", json.dumps({"command": SUBMIT})), text="That is all."),
    )
    async with staged(tmp_path, window=8000, reply=reader) as stage:
        done = await stage.run(
            *(command, "--yolo", "--exit-immediately", "--model", "openai/demo-model"),
            *("--task", TASK, "--output", str(tmp_path / "told.json")),
            folder=with_book(tmp_path / "work"),
            added=quiet | unpriced,
        )
        assert done.status == 0, done.everything
        told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
        assert told["info"]["exit_status"] == "Submitted", done.everything
        assert told["info"]["submission"].strip() == ANSWER
        stage.outgrew_the_window()


# --- aider ----------------------------------------------------------------------------------------------------------

QUIET = (
    *("--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--no-show-release-notes", "--no-detect-urls", "--no-gitignore", "--no-pretty"),
)
LOCAL = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def committed(folder: Path) -> list[str]:
    """Subjects of the commits, newest first."""
    words = ["git", "-C", str(folder), "log", "--format=%s"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()


async def test_aider_carries_out_a_message_and_commits(tmp_path: Path) -> None:
    folder = with_book(tmp_path / "work")
    async with staged(tmp_path, window=8000, reply=Writer("notes.txt")) as stage:
        named = (
            "--model",
            "openai/demo-model",
            "--openai-api-base",
            stage.base_url,
            "--openai-api-key",
            "a-key",
        )
        words = (str(AIDER.scripts / "aider"), *QUIET, *named, "--message", "Write notes.")
        done = await stage.run(*words, folder=folder, added=LOCAL)
        assert (folder / "notes.txt").read_text(encoding="utf-8") == Writer.text(1), done.everything
        assert committed(folder) == ["docs: note the birds of the day", "The book"]


async def test_a_long_chat_with_aider_outgrows_the_window(tmp_path: Path) -> None:
    folder, editions = with_book(tmp_path / "work"), 20
    async with staged(tmp_path, window=6000, reply=Writer("notes.txt")) as stage:
        # By itself aider would have its history summed up at an eighth of what it takes for the model's window.
        words = ("--max-chat-history-tokens", "1000000", "--map-tokens", "0", "--model", "openai/demo-model")
        typed = "".join(f"Write edition {number}.\n" for number in range(1, editions + 1))
        command = (str(AIDER.scripts / "aider"), *QUIET, *words, "notes.txt")
        done = await stage.run(*command, folder=folder, added=LOCAL, typed=typed)
        assert (folder / "notes.txt").read_text(encoding="utf-8") == Writer.text(editions), done.everything
        assert len(committed(folder)) > editions
        stage.outgrew_the_window(is_append_only=False)
