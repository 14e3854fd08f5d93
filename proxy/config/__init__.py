"""The configuration: `load` reads it, `describe` shows it, `Config` holds it."""

from proxy.config.listing import describe
from proxy.config.resolve import load
from proxy.config.values import (
    Address,
    Checkpoints,
    Config,
    Discovery,
    Flags,
    InvalidConfig,
    LogFormat,
    LogLevel,
    LogOptions,
    Mistake,
    ModelRule,
    Secret,
    SideCalls,
    SocketFile,
    Tenant,
    Upstream,
    is_loopback,
)

__all__ = [
    "Address",
    "Checkpoints",
    "Config",
    "Discovery",
    "Flags",
    "InvalidConfig",
    "LogFormat",
    "LogLevel",
    "LogOptions",
    "Mistake",
    "ModelRule",
    "Secret",
    "SideCalls",
    "SocketFile",
    "Tenant",
    "Upstream",
    "describe",
    "is_loopback",
    "load",
]
