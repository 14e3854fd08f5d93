"""Every exception that Transom raises for a reason of its own, with the HTTP status it becomes.

Rules. A message is a sentence for the person who reads it: what was wrong, where, what to do. It never holds a key, a
header value or any text of a conversation. Foreign exceptions are translated into these once, at the edge that meets
them, `from` their cause.
"""

from typing import ClassVar


class TransomError(Exception):
    """The family. `status` is what a client gets, `kind` and `code` fill OpenAI's error object.

    `fields` are header lines that belong to the answer, each with its CRLF.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "proxy_error"
    code: ClassVar[str] = "internal_error"
    fields: ClassVar[bytes] = b""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(TransomError):
    """The configuration holds mistakes; the message lists them all, one a line."""

    code = "invalid_configuration"


class CannotListen(TransomError):
    """The address that the configuration names is taken, foreign or unknown."""

    code = "cannot_listen"


class Unauthorized(TransomError):
    """This proxy asks for a token, and the request has none of them."""

    status = 401
    kind = "invalid_request_error"
    code = "invalid_api_key"
    fields = b"WWW-Authenticate: Bearer\r\n"


class ForeignHost(TransomError):
    """One of our own endpoints was asked for under a name that is not known to be ours (DNS rebinding)."""

    status = 421
    kind = "invalid_request_error"
    code = "host_not_allowed"


class ForeignPage(TransomError):
    """A web page of another site asked for one of our own endpoints."""

    status = 403
    kind = "invalid_request_error"
    code = "origin_not_allowed"


class NotHere(TransomError):
    """What was asked for is at another address of this proxy's."""

    status = 404
    kind = "invalid_request_error"
    code = "not_found"


class LoopDetected(TransomError):
    """A request that this proxy sent on has come back to it."""

    status = 508
    code = "loop_detected"
    fields = b"x-should-retry: false\r\n"  # clients of OpenAI's repeat what has a status from 500 on


class TooManyWatchers(TransomError):
    """More pages follow what happens here than are allowed to."""

    status = 503
    code = "too_many_watchers"


class UpstreamUnreachable(TransomError):
    """No connection to the upstream, or it closed before it answered."""

    status = 502
    kind = "upstream_error"
    code = "upstream_unreachable"


class UpstreamTimeout(TransomError):
    """The upstream did not answer, or went silent, for longer than configured."""

    status = 504
    kind = "upstream_error"
    code = "upstream_timeout"


class ClientStalled(TransomError):
    """The client began to send its request and went silent for longer than configured."""

    status = 408
    kind = "invalid_request_error"
    code = "request_timeout"


class BadBody(TransomError):
    """The request's body stops being HTTP before its end."""

    status = 400
    kind = "invalid_request_error"
    code = "bad_request"


class BodyTooLarge(TransomError):
    """The request's body is over the limit that this proxy is configured with."""

    status = 413
    kind = "invalid_request_error"
    code = "request_too_large"


class NoChatRequest(TransomError):
    """What was handed in to be measured or compacted is no chat request."""

    status = 400
    kind = "invalid_request_error"
    code = "no_chat_request"


class ContextOverflow(TransomError):
    """The prompt cannot be made to fit, and the configuration says to refuse it then."""

    status = 400
    kind = "invalid_request_error"
    code = "context_length_exceeded"


class UpstreamBroke(TransomError):
    """The upstream's answer ended before it was complete; what came is relayed and then broken off."""

    status = 502
    kind = "upstream_error"
    code = "upstream_closed"


class StoreUnavailable(TransomError):
    """The store of checkpoints does not answer or takes nothing in; the caller goes on without it."""

    status = 503
    code = "store_unavailable"
