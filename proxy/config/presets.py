"""What a kind of server is known to need: a few options of its models, and how that is known.

Rules. A preset holds only what its kind of server was seen to need, with the evidence beside it; whatever works without
is in none. It stands in for what a rule of the file leaves out, and for nothing that it gives.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from proxy.config.values import DEFAULT, ModelRule, Upstream
from proxy.context.policy import CacheKey, Count, UsageMode


@dataclass(frozen=True, slots=True)
class Preset:
    """Options of `models` with their values, and how it is known that this kind of server needs them."""

    options: Mapping[str, Any]
    evidence: str


def _preset(evidence: str, **options: Any) -> Preset:
    return Preset(MappingProxyType(options), evidence)


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "llama.cpp": _preset(
            "Counts by /v1/chat/completions/input_tokens, older ones by /apply-template and /tokenize"
            " (tools/server/server.cpp).",
            count=Count.AUTO,
        ),
        "vllm": _preset("Counts by /tokenize, template and tools included.", count=Count.AUTO),
        "sglang": _preset("Counts messages by /tokenize from 0.5 on.", count=Count.AUTO),
        "tgi": _preset("Counts by /chat_tokenize (router/src/server.rs).", count=Count.AUTO),
        "tabbyapi": _preset("Counts messages by /v1/token/encode.", count=Count.AUTO),
        "moonshot": _preset(
            "Counts by /v1/tokenizers/estimate-token-count, as its documentation says.", count=Count.AUTO
        ),
        "openai": _preset(
            "Routes by prompt_cache_key and the beginning of a prompt, as its guide to prompt caching says.",
            prompt_cache_key=CacheKey.AUTO,
        ),
        "mistral": _preset(
            "Answers 422 extra_forbidden to stream_options, and tells the usage in the last chunk always.",
            usage=UsageMode.PASSIVE,
        ),
        "openrouter": _preset(
            "Tells the usage always, and calls stream_options deprecated (its SDK).", usage=UsageMode.PASSIVE
        ),
        "xai": _preset(
            "Some models answer 400 to stream_options, and the last chunk has the usage.",
            usage=UsageMode.PASSIVE,
        ),
        "transformers": _preset(
            "Ignores stream_options, and refuses unknown fields with 422; the last chunk has the usage"
            " (cli/serving/chat_completion.py).",
            usage=UsageMode.PASSIVE,
        ),
        "llama-cpp-python": _preset(
            "Ignores stream_options, and tells the usage of no stream.", usage=UsageMode.PASSIVE
        ),
    }
)


def preset(rule: ModelRule, given: Collection[str], servers: Mapping[str, Upstream]) -> ModelRule:
    """The rule with what the presets of its upstreams set, where the file gives nothing."""
    policies = {
        name: dataclasses.replace(rule.policy, **_left(options.preset, given))
        for name, options in servers.items()
    }
    own = policies[rule.upstream or DEFAULT]
    others = () if rule.upstream else tuple(each for each in policies.items() if each[1] != own)
    return dataclasses.replace(rule, policy=own, others=others)


def left_to_presets(rule: ModelRule) -> frozenset[str]:
    """The options that are not alike wherever the rule holds, so that the file cannot have given them."""
    names = [field.name for field in dataclasses.fields(rule.policy)]
    return frozenset(
        name
        for name in names
        for _, policy in rule.others
        if getattr(policy, name) != getattr(rule.policy, name)
    )


def _left(name: str | None, given: Collection[str]) -> dict[str, Any]:
    options = PRESETS[name].options if name else {}
    return {option: value for option, value in options.items() if option not in given}
