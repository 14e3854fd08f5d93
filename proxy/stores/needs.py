"""What a store needs that comes as an extra.

Rules. Nothing here is needed until a configuration names such a store; then it says what to install.
"""

from importlib.util import find_spec

from proxy.errors import ConfigError


def check(url: str) -> None:
    """Raises `ConfigError` where what a store at this URL needs is not installed."""
    if url.startswith("redis") and find_spec("redis") is None:
        raise ConfigError(
            "store: the package redis, which a redis:// or rediss:// store needs, is not installed;"
            " install it with: pip install redis"
        )
