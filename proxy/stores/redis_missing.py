"""What stands for the Redis store where its client is not installed.

Rules. Nothing here is needed until a configuration names such a store; then it says what to install.
"""

from proxy.errors import ConfigError
from proxy.stores.protocol import Bounds, Opened, Tell


async def open_redis(url: str, bounds: Bounds, tell: Tell) -> Opened:
    """Raises `ConfigError`, always."""
    raise ConfigError(
        "store: the package redis, which a redis:// or rediss:// store needs, is not installed;"
        " install it with: pip install redis"
    )
