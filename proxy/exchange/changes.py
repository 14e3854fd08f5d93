"""What is changed in a body beside nothing: the members that get other bytes, and how each change is announced.

Rules. A member that is not named here keeps its very bytes. Every change is announced in the actions, and each can be
switched off by configuration.
"""

import msgspec

from proxy.context.edits import NOTHING, Edits
from proxy.context.policy import ModelPolicy, UsageMode
from proxy.wire import chat
from proxy.wire.chat import ChatRequest

STREAM_OPTIONS = "stream_options"
CACHE_KEY = "prompt_cache_key"
USAGE = "include_usage"


class Changes(msgspec.Struct, frozen=True):
    """The members of the body that change, and the announced changes beside the edits."""

    members: dict[str, bytes]
    announced: tuple[str, ...] = ()
    strip_usage: bool = False

    @classmethod
    def splicing(cls, request: ChatRequest, policy: ModelPolicy, *, refuses_usage: bool) -> "Changes":
        """Nothing but a request for the stream's usage, where the client made none and the upstream minds none."""
        if not request.stream or request.wants_usage or refuses_usage or policy.usage is not UsageMode.INJECT:
            return cls({})
        return cls({STREAM_OPTIONS: chat.usage_member(request)}, (USAGE,), True)

    def applied_to(self, request: ChatRequest) -> bytes:
        """The body of the request with these members."""
        return chat.with_members(request, self.members) if self.members else request.body

    def without_usage(self) -> "Changes":
        """The same for an upstream that refuses `stream_options`."""
        members = {name: raw for name, raw in self.members.items() if name != STREAM_OPTIONS}
        return Changes(members, tuple(name for name in self.announced if name != USAGE), False)

    def actions(self, edits: Edits) -> str:
        """What was done, as the header and the log say it."""
        done = self.announced if edits is NOTHING else (edits.actions(), *self.announced)
        return ",".join(filter(None, done)) or "none"
