"""A file of text that an option names.

Rules. The file is read when the configuration is; one that cannot be read is a mistake.
"""

from pathlib import Path

from proxy.config.kinds import Wrong


def text_of(path: str) -> str | Wrong:
    """What the file holds, without a byte order mark; or what is wrong with it."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        return Wrong(f"cannot be read: {error.strerror or type(error).__name__}")
    except ValueError:  # no UTF-8, or a path with a zero byte
        return Wrong("is no file of text; save it as UTF-8")
