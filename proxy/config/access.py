"""The options that say who may come in: to the proxy, and to its own endpoints.

Rules. Those of `proxy.config.options`, of which this is a part.
"""

from typing import Final

from proxy.config import kinds
from proxy.config.forms import Option, Section
from proxy.config.token_file import TOKENS_FILE
from proxy.config.values import Admin, Auth

AUTH: Final = Section(
    "auth",
    Auth,
    "Who may use the proxy. With tokens every request needs one, as Authorization: Bearer TOKEN, as x-api-key or as"
    " api-key, and goes on with upstream.api_key in its place. A client that brings its own key for the upstream says"
    " the token as x-transom-token.",
    (
        Option(
            "tokens",
            kinds.TOKEN,
            "Any one of these lets a request in. Whoever holds one shares nothing that is remembered with the others."
            " Empty means that everybody may.",
            "Set them when others reach the address, or web pages on this machine are not trusted.",
            is_list=True,
        ),
        Option(
            "tokens_file",
            TOKENS_FILE,
            "A file with more of them, one a line; empty lines and those that begin with # do not count. A change of it"
            " is taken over like one of this file.",
            "Take it where secrets come as files.",
        ),
    ),
)

ADMIN: Final = Section(
    "admin",
    Admin,
    "The proxy's own endpoints under /-/.",
    (
        Option(
            "listen",
            kinds.ADDRESS,
            "HOST:PORT, or unix:PATH, of their own. The main address then answers only /-/healthz and /-/readyz of"
            " them. Left out, they are where all else is.",
            "Set it to keep them from those who use the proxy.",
            needs_restart=True,
        ),
        Option(
            "hosts",
            kinds.HOST_NAME,
            "Names under which they may be asked for, beside IP addresses, localhost and the names to listen on. Any"
            " other is refused, since a web page can make a name of its own lead here.",
            "Add the name by which other machines or containers know this one.",
            is_list=True,
        ),
    ),
)
