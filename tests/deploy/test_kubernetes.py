"""Kubernetes manifests: valid for several releases, locked down, and true to the image, the settings and the service.

Neither Debian nor PyPI has a tool that builds Kustomize or knows the Prometheus Operator, so
what these files refer to and contain is checked here.
"""

import copy
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import torch
import yaml
from kubernetes_validate.utils import all_versions

from fleet.__main__ import parser as fleet_parser
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.metrics import Metrics
from service.settings import Settings
from tests.service.serving import serving

from .conftest import instructions

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = [version for version in all_versions() if version >= "1.27"]
KSERVES = {"minReplicas", "maxReplicas", "scaleMetric", "scaleTarget"}  # of a predictor, not of a pod


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


PLAIN = {each["kind"]: each for name in ("models.yaml", "pathline.yaml") for each in documents(name)}
[KSERVE] = documents("kserve.yaml")
[BULK] = documents("bulk.yaml")
[INGRESS] = documents("ingress.yaml")
[SCALED] = documents("keda.yaml")
PREDICTOR = KSERVE["spec"]["predictor"]
PODS = {
    "deployment": PLAIN["Deployment"]["spec"]["template"]["spec"],
    "bulk": BULK["spec"]["template"]["spec"],
    "trainer": PLAIN["Job"]["spec"]["template"]["spec"],
    "kserve": {name: value for name, value in PREDICTOR.items() if name not in KSERVES},
}
SERVERS = ("deployment", "kserve")


def container(pod: str) -> dict[str, Any]:
    [only] = PODS[pod]["containers"]
    return only


def environment(pod: str) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container(pod)["env"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_valid_for_kubernetes(version: str) -> None:
    # A KServe predictor is a pod with additional members; `test_kserve` checks it against KServe's own model.
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": KSERVE["metadata"], "spec": PODS["kserve"]}
    for document in (*PLAIN.values(), BULK, INGRESS, pod):
        assert kubernetes_validate.validate(document, version, strict=True)


def test_the_validator_sees_a_mistake() -> None:
    wrong = copy.deepcopy(PLAIN["Deployment"])
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinessprobe"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_what_belongs_together() -> None:
    deployment, service, scaler = (PLAIN[kind] for kind in ("Deployment", "Service", "HorizontalPodAutoscaler"))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert PLAIN["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert labels != PLAIN["Job"]["spec"]["template"]["metadata"]["labels"]  # or it would be sent requests
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    assert "replicas" not in deployment["spec"]  # the autoscaler's
    assert scaler["spec"]["minReplicas"] > PLAIN["PodDisruptionBudget"]["spec"]["minAvailable"]
    [port] = service["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in container("deployment")["ports"]}
    claim = PLAIN["PersistentVolumeClaim"]["metadata"]["name"]
    for pod in PODS.values():
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim


def test_kustomizations_name_every_manifest() -> None:
    base, [component] = documents("kustomization.yaml"), documents("monitoring/kustomization.yaml")
    assert [(each["apiVersion"], each["kind"]) for each in (*base, component)] == [
        ("kustomize.config.k8s.io/v1beta1", "Kustomization"),
        ("kustomize.config.k8s.io/v1alpha1", "Component"),
    ]
    named = [*base[0]["resources"], *(f"monitoring/{name}" for name in component["resources"])]
    named += ["bulk.yaml", "ingress.yaml", "keda.yaml", "kserve.yaml"]  # applied by themselves
    there = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert sorted(named) == sorted(there)


def test_the_monitor_finds_the_port_of_the_service() -> None:
    [monitor] = documents("monitoring/servicemonitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "ServiceMonitor")
    assert set(monitor["spec"]) == {"selector", "endpoints"}  # required by the operator's schema
    assert monitor["spec"]["selector"] == {"matchLabels": PLAIN["Service"]["metadata"]["labels"]}
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in PLAIN["Service"]["spec"]["ports"]}
    assert (endpoint["path"], set(endpoint)) == ("/metrics", {"port", "path", "interval"})


def test_the_operator_gets_the_same_alerts() -> None:
    [rules] = documents("monitoring/rules.yaml")
    assert (rules["apiVersion"], rules["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((FOLDER.parent / "prometheus" / "rules.yml").read_text())


@pytest.mark.parametrize("pod", PODS)
def test_pods_are_closed(pod: str) -> None:
    spec, security = PODS[pod], container(pod)["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [user] = [rest for word, rest in instructions() if word == "USER"]
    assert f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" == user
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["name"]: mount for mount in container(pod)["volumeMounts"]}
    assert mounts["tmp"]["mountPath"] == "/tmp"  # noqa: S108  (of the container)
    assert environment(pod)["NUMBA_CACHE_DIR"].startswith("/tmp/")  # noqa: S108
    assert environment(pod)["PATHLINE_MODELS_DIR"] == mounts["models"]["mountPath"]
    assert mounts["models"].get("readOnly", False) is (pod != "trainer")


@pytest.mark.parametrize("pod", PODS)
def test_settings_are_ours_alone(pod: str) -> None:
    names = [name.removeprefix("PATHLINE_").lower() for name in environment(pod) if name.startswith("PATHLINE_")]
    assert set(names) <= {*Settings.model_fields, "runs_dir"}
    # A cluster would add PATHLINE_PORT=tcp://... for a Service that is called pathline.
    assert PODS[pod]["enableServiceLinks"] is False


@pytest.mark.parametrize("pod", SERVERS)
def test_a_stop_leaves_time_to_drain(pod: str) -> None:
    drain, [program, before] = float(environment(pod)["PATHLINE_DRAIN_S"]), _before_stop(pod)
    assert program == "sleep"
    assert PODS[pod]["terminationGracePeriodSeconds"] >= drain + float(before) + 10


def _before_stop(pod: str) -> list[str]:
    return container(pod)["lifecycle"]["preStop"]["exec"]["command"]


@pytest.mark.parametrize("pod", SERVERS)
def test_as_many_threads_as_processors(pod: str) -> None:
    resources = container(pod)["resources"]
    assert environment(pod)["PATHLINE_THREADS"] == resources["limits"]["cpu"]
    if pod in SERVERS:
        settings = Settings.model_construct()
        admitted = 2 * settings.max_job_bytes + settings.max_condition_bytes  # bodies have a ledger as large as jobs
        assert int(resources["limits"]["memory"].removesuffix("Gi")) * 2**30 >= admitted + 2**30
    assert set(resources["requests"]) == set(resources["limits"]) == {"cpu", "memory"}


def test_a_bulk_job_has_as_many_pods_as_workers() -> None:
    program, *arguments = container("bulk")["args"]
    assert program == "fleet"
    spec, options = BULK["spec"], fleet_parser().parse_args(arguments)
    assert (spec["completionMode"], options.on) == ("Indexed", "indexed")
    assert spec["completions"] == spec["parallelism"] == options.workers
    assert str(options.threads) == container("bulk")["resources"]["limits"]["cpu"]
    mounts = {mount["mountPath"] for mount in container("bulk")["volumeMounts"] if not mount.get("readOnly")}
    assert options.to.startswith(tuple(mounts))


def test_the_ingress_says_what_the_configuration_of_nginx_says() -> None:
    text = (FOLDER.parent / "nginx" / "pathline.conf").read_text()
    prefix = "nginx.ingress.kubernetes.io/"
    notes = {name.removeprefix(prefix): value for name, value in INGRESS["metadata"]["annotations"].items()}
    for name in ("proxy-next-upstream", "proxy-next-upstream-tries", "proxy-buffering"):
        assert f"\n    {name.replace('-', '_')} {notes[name]};" in text
    for name in ("proxy-connect-timeout", "proxy-read-timeout"):
        assert f"\n    {name.replace('-', '_')} {notes[name]}s;" in text
    [rule] = INGRESS["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    service = PLAIN["Service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


def test_the_scaled_object_takes_over_the_autoscaler_and_asks_for_a_metric_of_ours() -> None:
    scaler, spec = PLAIN["HorizontalPodAutoscaler"], SCALED["spec"]
    assert (SCALED["apiVersion"], SCALED["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert SCALED["metadata"]["annotations"] == {"scaledobject.keda.sh/transfer-hpa-ownership": "true"}
    assert set(spec) == {
        "scaleTargetRef",
        "pollingInterval",
        "minReplicaCount",
        "maxReplicaCount",
        "advanced",
        "triggers",
    }
    assert spec["scaleTargetRef"] == scaler["spec"]["scaleTargetRef"]
    taken = spec["advanced"]["horizontalPodAutoscalerConfig"]
    assert taken["name"] == scaler["metadata"]["name"]
    for ours, theirs in (("minReplicaCount", "minReplicas"), ("maxReplicaCount", "maxReplicas")):
        assert spec[ours] == scaler["spec"][theirs]
    made = copy.deepcopy(scaler)  # as KEDA resolves it
    made["spec"]["behavior"] = taken["behavior"]
    [trigger] = spec["triggers"]
    metric = {"type": "External", "external": {"metric": {"name": "s0-prometheus"}}}
    metric["external"]["target"] = {"type": trigger["metricType"], "averageValue": trigger["metadata"]["threshold"]}
    made["spec"]["metrics"] = [metric]
    assert kubernetes_validate.validate(made, VERSIONS[-1], strict=True)
    assert (trigger["type"], set(trigger["metadata"])) == ("prometheus", {"serverAddress", "query", "threshold"})
    [name] = re.findall(r"pathline_\w+", trigger["metadata"]["query"])
    assert name in Metrics().text().decode()


def test_the_metric_that_the_docs_add_to_the_autoscaler_is_valid_and_ours() -> None:
    text = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    [block] = re.findall(r"^```yaml\n(- type: Pods\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    scaler, scaled = copy.deepcopy(PLAIN["HorizontalPodAutoscaler"]), SCALED["spec"]["triggers"][0]["metadata"]
    [added] = yaml.safe_load(block)
    scaler["spec"]["metrics"].append(added)
    for version in VERSIONS:
        assert kubernetes_validate.validate(scaler, version, strict=True)
    assert f"{added['pods']['metric']['name']} " in Metrics().text().decode()
    assert added["pods"]["target"]["averageValue"] == scaled["threshold"]  # the same seconds of work for each pod


def test_kserve_finds_the_predictor_and_its_protocol() -> None:
    assert container("kserve")["name"] == "kserve-container"
    assert environment("kserve")["PROTOCOL"] == "v2"
    assert KSERVE["metadata"]["name"] != PLAIN["Deployment"]["metadata"]["name"]
    assert 1 <= PREDICTOR["scaleTarget"] <= 100  # the value that KServe allows for CPU


@pytest.fixture(scope="module", params=SERVERS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Any]]:
    """The service with the settings of a manifest, except folders and port."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1))
    save(root, "net", model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    names = [name for name in environment(request.param) if name.startswith("PATHLINE_")]
    settings = {name.removeprefix("PATHLINE_").lower(): environment(request.param)[name] for name in names}
    del settings["models_dir"]
    assert container(request.param)["args"] == ["service"]  # what `serving` starts
    with serving(root, **settings) as (url, process):
        yield request.param, url, process


def test_probes_are_answered_and_a_stop_ends_well(started: tuple[str, str, Any]) -> None:
    pod, url, process = started
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert httpx.get(url + container(pod)[probe]["httpGet"]["path"]).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
