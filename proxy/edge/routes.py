"""Which upstream a request goes to: the one that its path names, else the one that a rule has for its model.

Rules. Whoever writes the name of an upstream in front of a path has chosen it, and no rule sends the request elsewhere.
What neither path nor model decide is the default's. Where a rule has sent a request elsewhere, nobody but the
configuration has chosen, so the client's own credential stays behind: it is the default upstream's affair. Our own
endpoints lie at the root alone, whatever stands in front of what looks like one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from proxy.config import Config, ModelRule, SideCalls
from proxy.config import Upstream as Options
from proxy.config.values import DEFAULT
from proxy.context.policy import Mode
from proxy.edge import admin
from proxy.edge.performer import Surroundings
from proxy.edge.windows import MODEL_CHARACTERS


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """An upstream as the requests of one configuration meet it. `side_calls` are those that hold for it."""

    name: str
    options: Options
    side_calls: SideCalls
    around: Surroundings


class Routes:
    """The ways of one configuration; `sites` are its upstreams by name."""

    def __init__(self, config: Config, sites: Mapping[str, Site]) -> None:
        self._config = config
        self._sites = sites
        self._prefixes = {name: site for name, site in sites.items() if name != DEFAULT}
        self._usual_rule = lru_cache(maxsize=1024)(config.rule_for)
        self._modes = {name: self._mode(name) for name in (None, *self._prefixes)}
        self.default = sites[DEFAULT]
        self.needs_model = any(rule.upstream not in (None, DEFAULT) for rule in config.rules_for(None))

    def by_path(self, path: str) -> tuple[Site, str | None, str]:
        """The site, its name where the path names it, and the path without that."""
        if self._prefixes:
            name, slash, rest = path[1:].partition("/")
            named = self._prefixes.get(name)
            if named is not None and not admin.is_own(f"{slash}{rest}"):
                return named, name, f"/{rest}"
        return self.default, None, path

    def rule(self, model: str, named: str | None) -> ModelRule:
        """What holds for a model; `named` is the upstream in the path."""
        usual = len(model) <= MODEL_CHARACTERS
        return self._usual_rule(model, named) if usual else self._config.rule_for(model, named)

    def by_rule(self, rule: ModelRule) -> Site:
        """The site of a request whose path names none."""
        return self._sites[rule.upstream] if rule.upstream else self.default

    def mode(self, named: str | None) -> Mode | None:
        """The mode of all requests that come this way, where it is known before their model is: OFF."""
        return self._modes[named]

    def _mode(self, named: str | None) -> Mode | None:
        rules = self._config.rules_for(named)
        return Mode.OFF if all(rule.policy.mode is Mode.OFF for rule in rules) else None
