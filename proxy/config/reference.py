"""The reference of all options, as Markdown.

Rules. What is said of an option comes from the table of options; what is said of all of them stands here, once. The
same table gives the same text.
"""

import json
from collections.abc import Iterator
from typing import Final

from proxy.config.changes import restart_names
from proxy.config.forms import REQUIRED, Option, Section
from proxy.config.options import FLAGS, ROOT
from proxy.config.presets import PRESETS
from proxy.config.schema import shown_default

_BEGINNING: Final = """\
# Configuration

Every option, with its default, its unit, what it does and why one would change it. This page is printed by
`transom schema --reference` and comes from the table that the reader goes by; do not edit it. `config.example.yaml`
shows the same as a file to start from.

```sh
transom check --config transom.yaml    # what holds, credentials hidden; or every mistake with its line
transom schema > config.schema.json    # for editors
```

An editor with a YAML language server completes keys and shows these texts where a file begins with

```yaml
# yaml-language-server: $schema=config.schema.json
```

- `${NAME}` and `${NAME:-default}` come from the environment, in any value; `$$` is the sign itself.
- A key that is left out, empty or null has its default. One that is unknown is a mistake, and what was likely meant is
  named.
- Durations are `500ms`, `20s`, `2m`, `1h`, `7d` or a number of seconds. Sizes are `512KiB`, `64MiB`, `256MB` or a
  number of bytes. Whole numbers may be `128k` (128000) or `128Ki` (131072).
- A process that runs takes a change of the file over within two seconds, and at once on SIGHUP, for the requests that
  come from then on. A file with a mistake is not taken over: the log tells its mistakes, and what held goes on.
- Patterns are shell patterns (`*`, `?`, `[abc]`), in upper and lower case as they stand.
"""

_PRESETS: Final = """
## Presets

What `preset` of an upstream sets for its models, where their rule says nothing else, and how that need is known. Kinds
of servers that are not listed need nothing set.

| preset | sets | evidence |
|---|---|---|
"""

_HEAD: Final = "| key | value | default | what it does | why to change it |\n|---|---|---|---|---|\n"


def reference() -> str:
    """The page."""
    flags = ", ".join(f"`--{flag}` sets `{name}`" for flag, name in FLAGS.items())
    restart = ", ".join(f"`{name}`" for name in restart_names())
    forms = f"- Flags win over the file: {flags}.\n- A change of these needs a restart: {restart}.\n"
    return f"{_BEGINNING}{forms}{''.join(_parts(ROOT, ''))}{_presets()}"


def _presets() -> str:
    rows = [
        f"| `{name}` | {', '.join(f'`{option}: {value}`' for option, value in preset.options.items())}"
        f" | {preset.evidence} |\n"
        for name, preset in PRESETS.items()
    ]
    return f"{_PRESETS}{''.join(rows)}"


def _parts(section: Section, name: str) -> Iterator[str]:
    """A section with its options in a table, and then those in it."""
    heading = f"`{name}`" if name else "At the top"
    effect = f"{section.effect}\n\n" if section.effect else ""
    said = section.each.options if section.like and section.each else section.entries
    rows = "".join(_row(section, entry) for entry in said if isinstance(entry, Option))
    besides = f"\nBeside that, all that `{section.like}` has.\n" if section.like else ""
    yield f"\n## {heading}\n\n{effect}{_HEAD}{rows}{besides}"
    for entry in said:
        if isinstance(entry, Section):
            yield from _parts(entry, f"{name}.{entry.key}" if name else entry.key)


def _row(section: Section, option: Option) -> str:
    value = f"list of {option.kind.shape.says}" if option.is_list else option.kind.shape.says
    cells = (
        f"`{option.name}`",
        f"{value}; {option.unit}" if option.unit else value,
        _default(section, option),
        option.effect,
        option.reason,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _default(section: Section, option: Option) -> str:
    if section.default(option) is REQUIRED:
        return "must be given"
    shown = shown_default(section, option)
    if shown is None:
        return "none"
    plain = isinstance(shown, str) and shown
    return f"`{shown if plain else json.dumps(shown, ensure_ascii=False)}`"
