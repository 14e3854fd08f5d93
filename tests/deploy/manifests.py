"""The Kubernetes manifests as the tests read them: objects by kind and name, and what belongs together.

Rules. Files are read in full and strictly: a key that stands twice is an error, as it is for the cluster.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.conftest import ROOT

FOLDER: Final = ROOT / "deploy" / "kubernetes"
SIDECAR: Final = (FOLDER / "sidecar.yaml",)
STANDALONE: Final = tuple(sorted((FOLDER / "standalone").iterdir()))

Object = dict[str, Any]


class Strict(yaml.SafeLoader):
    """A loader that refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(names) == len(set(names)), f"{node.start_mark}: a key stands twice"
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class Manifests:
    """All objects of one way to deploy."""

    objects: Sequence[Object]

    def all(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def the(self, kind: str, name: str) -> Object:
        [found] = [each for each in self.all(kind) if each["metadata"]["name"] == name]
        return found

    def pods(self) -> Iterator[Object]:
        """The pod templates."""
        for each in self.all("Deployment"):
            yield each["spec"]["template"]

    def selected(self, selector: Mapping[str, str]) -> list[Object]:
        """The pod templates that have all these labels."""
        return [pod for pod in self.pods() if selector.items() <= pod["metadata"]["labels"].items()]


def read(files: Sequence[Path]) -> Manifests:
    found: list[Object] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        found += yaml.load_all(text, Loader=Strict)
    return Manifests(found)


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def ports(container: Object) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container.get("ports", [])}


def environment(container: Object, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What a container's variables hold, with secrets of these values; `$(NAME)` is put in as the cluster does it."""
    found: dict[str, str] = {}
    for each in container.get("env", []):
        if "value" in each:
            value = str(each["value"])
            for name, earlier in found.items():
                value = value.replace(f"$({name})", earlier)
            assert "$(" not in value, f"{each['name']} names what does not stand above it"
        else:
            key = each["valueFrom"]["secretKeyRef"]
            value = secrets[key["name"]][key["key"]]
        found[each["name"]] = value
    return found
