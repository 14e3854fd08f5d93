"""deploy/kubernetes: valid by the cluster's own schemas, restricted, consistent, with configurations that are read.

Rules. What the schemas cannot see is checked here: that names lead to what there is, that ports are those that the
configuration listens on, that the policies of the network let through what the configuration needs, and no more.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
import yaml

from proxy.config import Address, Config
from proxy.edge.service import GRACE
from tests.conftest import ROOT
from tests.deploy import manifests
from tests.deploy.checkers import configuration, program
from tests.deploy.manifests import SIDECAR, STANDALONE, Manifests, Object, containers, environment, ports

WAYS: Final = {"sidecar": manifests.read(SIDECAR), "standalone": manifests.read(STANDALONE)}
OLDEST: Final = "1.30"
"""The first with a pause in preStop."""
NEWEST: Final = "1.37"
SECRETS: Final = {
    "transom": {
        "tokens": "made-up",
        "redis-password": "c0ffee",
        "tenant-secret": "made-up-too",
        "upstream-api-key": "",
    },
    "llm": {"api-key": "made-up"},
}

PODS: Final = [
    pytest.param(pod, id=f"{way}-{pod['metadata']['labels']['app.kubernetes.io/name']}")
    for way, objects in WAYS.items()
    for pod in objects.pods()
]
STANDALONE_OBJECTS: Final = WAYS["standalone"]


def transom(way: Manifests) -> Object:
    [found] = [each for pod in way.pods() for each in containers(pod) if each["name"] == "transom"]
    return found


def validated(version: str, *files: Path) -> subprocess.CompletedProcess[str]:
    words = [program("kubernetes-validate"), "--strict", "--quiet", "-k", version, *map(str, files)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_each_object_is_valid_by_the_schemas_of_the_cluster(version: str) -> None:
    done = validated(version, *SIDECAR, *STANDALONE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_planted_mistake_is_found_by_these_schemas(tmp_path: Path) -> None:
    text = (manifests.FOLDER / "standalone/deployment.yaml").read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("readOnlyRootFilesystem: true", "readonlyRootFilesystem: true"))
    done = validated(NEWEST, wrong)
    assert done.returncode != 0
    assert "readonlyRootFilesystem" in done.stdout + done.stderr


@pytest.mark.parametrize("pod", PODS)
def test_each_pod_keeps_to_the_restricted_standard(pod: Object) -> None:
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert {kind for volume in spec.get("volumes", []) for kind in volume} <= {"name", "configMap", "secret"}
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not container["image"].endswith(":latest")
        assert ":" in container["image"]
        assert "memory" in container["resources"]["limits"]
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}


@pytest.mark.parametrize("way", WAYS)
def test_the_proxy_runs_as_the_images_user_with_the_images_command(way: str) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    container = transom(WAYS[way])
    [pod] = [each for each in WAYS[way].pods() if container in containers(each)]
    context = pod["spec"]["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in dockerfile
    quoted = ", ".join(f'"{word}"' for word in container["args"])
    assert f"CMD [{quoted}]" in dockerfile
    assert "command" not in container


@pytest.mark.parametrize("way", WAYS)
def test_probes_ask_what_the_proxy_answers_at_a_port_that_the_pod_has(way: str) -> None:
    container = transom(WAYS[way])
    asked = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert {each["port"] for each in asked.values()} <= set(ports(container))
    assert asked["readinessProbe"]["path"] == "/-/readyz"
    assert asked["livenessProbe"]["path"] == "/-/healthz"
    assert container["readinessProbe"]["timeoutSeconds"] >= 3


@pytest.mark.parametrize("way", WAYS)
def test_running_requests_get_their_time_to_end(way: str) -> None:
    container = transom(WAYS[way])
    [pod] = [each for each in WAYS[way].pods() if container in containers(each)]
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod["spec"]["terminationGracePeriodSeconds"] > pause + GRACE


def read_configuration(way: Manifests, folder: Path) -> Config:
    """The configuration that is mounted where the command looks for it."""
    container = transom(way)
    [pod] = [each for each in way.pods() if container in containers(each)]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    mounts: dict[str, Path] = {}
    text = ""
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        here = folder / mount["name"]
        here.mkdir()
        mounts[mount["mountPath"]] = here
        assert mount["readOnly"] is True
        if "configMap" in volume:
            [(name, text)] = way.the("ConfigMap", volume["configMap"]["name"])["data"].items()
            assert f"{mount['mountPath']}/{name}" == container["args"][-1]
        else:
            for item in volume["secret"]["items"]:
                held = SECRETS[volume["secret"]["secretName"]][item["key"]]
                (here / item["path"]).write_text(held, encoding="utf-8")
    return configuration(folder, text, environment(container, SECRETS), mounts)


@pytest.mark.parametrize("way", WAYS)
def test_its_configuration_is_read_and_listens_where_the_ports_say(way: str, tmp_path: Path) -> None:
    config = read_configuration(WAYS[way], tmp_path)
    addresses = {"http": config.listen, "admin": config.admin.listen}
    for name, port in ports(transom(WAYS[way])).items():
        assert addresses[name] == Address("0.0.0.0", port), f"probes come to the pod's own address: {name}"


def test_the_standalone_proxy_asks_for_tokens_and_shares_a_store_that_is_there(tmp_path: Path) -> None:
    config = read_configuration(STANDALONE_OBJECTS, tmp_path)
    assert config.auth.tokens_file
    store = urlsplit(config.store.reveal())
    service = STANDALONE_OBJECTS.the("Service", str(store.hostname))
    assert [each["port"] for each in service["spec"]["ports"]] == [store.port]
    assert store.password == SECRETS["transom"]["redis-password"]
    assert set(config.admin.hosts) >= {"transom", "transom.transom.svc"}


def test_the_sidecars_proxy_is_reached_by_its_application_alone(tmp_path: Path) -> None:
    way = WAYS["sidecar"]
    config = read_configuration(way, tmp_path)
    assert isinstance(config.listen, Address)
    assert config.listen.host == "127.0.0.1"
    [pod] = way.pods()
    [application] = pod["spec"]["containers"]
    url = environment(application, SECRETS)["OPENAI_BASE_URL"]
    assert url == f"http://127.0.0.1:{config.listen.port}/v1"
    [sidecar] = pod["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert "startupProbe" in sidecar


@pytest.mark.parametrize("way", WAYS)
def test_services_budgets_and_policies_select_pods_that_there_are(way: str) -> None:
    objects = WAYS[way]
    for service in objects.all("Service"):
        [pod] = objects.selected(service["spec"]["selector"])
        named = {name for each in containers(pod) for name in ports(each)}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= named
    for each in [*objects.all("PodDisruptionBudget"), *objects.all("Deployment")]:
        assert len(objects.selected(each["spec"]["selector"]["matchLabels"])) == 1
    for policy in objects.all("NetworkPolicy"):
        chosen = policy["spec"]["podSelector"].get("matchLabels")
        assert chosen is None or len(objects.selected(chosen)) == 1


def test_the_autoscaler_has_the_count_of_replicas_to_itself() -> None:
    [scaler] = STANDALONE_OBJECTS.all("HorizontalPodAutoscaler")
    target = STANDALONE_OBJECTS.the("Deployment", scaler["spec"]["scaleTargetRef"]["name"])
    assert "replicas" not in target["spec"]
    assert scaler["spec"]["minReplicas"] >= 2
    requests = transom(STANDALONE_OBJECTS)["resources"]["requests"]
    assert scaler["spec"]["metrics"][0]["resource"]["name"] in requests


def openings(policy: Object, direction: str) -> Iterator[tuple[str, int | str]]:
    """Label of the other side ("*" for whoever), and port, of each way that a policy opens."""
    for rule in policy["spec"].get(direction, []):
        for side in rule["from" if direction == "ingress" else "to"]:
            labels = {**side.get("podSelector", {}).get("matchLabels", {})}
            labels |= side.get("namespaceSelector", {}).get("matchLabels", {})
            for port in rule["ports"]:
                yield next(iter(labels.values()), "*"), port["port"]


def test_the_network_lets_through_what_the_configuration_needs_and_no_more(tmp_path: Path) -> None:
    config = read_configuration(STANDALONE_OBJECTS, tmp_path)
    policy = STANDALONE_OBJECTS.the("NetworkPolicy", "transom")
    store, upstream = urlsplit(config.store.reveal()), urlsplit(config.upstream.base_url)
    assert set(openings(policy, "egress")) == {
        ("kube-dns", 53),
        (store.hostname, store.port),
        (upstream.hostname, upstream.port),
    }
    assert set(openings(policy, "ingress")) == {("*", "http"), ("monitoring", "admin")}
    redis = STANDALONE_OBJECTS.the("NetworkPolicy", "transom-redis")
    assert set(openings(redis, "ingress")) == {("transom", store.port)}
    assert list(openings(redis, "egress")) == []
    everybody = STANDALONE_OBJECTS.the("NetworkPolicy", "nothing-else")["spec"]
    assert everybody == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_each_secret_that_is_read_is_made_by_the_command_that_is_told() -> None:
    told = (manifests.FOLDER / "standalone/namespace.yaml").read_text(encoding="utf-8")
    made = set(re.findall(r"--from-literal=([\w-]+)=", told))
    assert made == set(SECRETS["transom"])
    text = yaml.safe_dump_all(STANDALONE_OBJECTS.objects)
    read = set(re.findall(r"secretKeyRef:\n\s+key: ([\w-]+)", text)) | {"tokens"}
    assert read == made


def test_everything_of_the_standalone_way_is_in_one_namespace_that_is_restricted() -> None:
    [namespace] = STANDALONE_OBJECTS.all("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [each for each in STANDALONE_OBJECTS.objects if each is not namespace]
    assert {each["metadata"]["namespace"] for each in others} == {namespace["metadata"]["name"]}
