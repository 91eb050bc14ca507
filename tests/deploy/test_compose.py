"""The Compose files: valid for Compose 1.29 and 2, with containers locked down as far as possible."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).parents[2]
BASE, GPU = "docker-compose.yml", "docker-compose.gpu.yml"
FOLDER = "/var/lib/pathline"

# The part of the schema of Compose 1.29.2 that these files might use; version 2 allows all of it.
TOP = {"services", "volumes", "networks", "secrets", "configs"}
BUILD = {"context", "dockerfile", "args", "labels", "cache_from", "network", "target", "shm_size", "extra_hosts"}
SERVICE_KEYS = """
    build cap_add cap_drop command cpus depends_on deploy devices entrypoint env_file environment expose extra_hosts
    group_add healthcheck hostname image init ipc labels logging mem_limit networks pids_limit ports profiles
    read_only restart secrets security_opt shm_size stop_grace_period stop_signal sysctls tmpfs ulimits user volumes
    working_dir
"""
OURS, THEIRS = ("trainer", "service"), ("prometheus", "grafana", "balancer")
REPLICA = "replica"
OWNER = "prometheus-volume"
HEALTHCHECK = {"disable", "interval", "retries", "test", "timeout", "start_period"}


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def services(name: str) -> dict[str, dict[str, Any]]:
    return load(name)["services"]


def seconds(text: str) -> int:
    (number,) = re.fullmatch(r"(\d+)s", text).groups()  # type: ignore[union-attr]
    return int(number)


@pytest.mark.parametrize("name", [BASE, GPU])
def test_only_keys_that_compose_1_29_knows(name: str) -> None:
    assert {key for key in load(name) if not key.startswith("x-")} <= TOP
    assert not (ROOT / name).read_text().startswith("# syntax")
    for service in services(name).values():
        assert set(service) <= set(SERVICE_KEYS.split())
        build = service.get("build", ".")
        assert isinstance(build, str) or set(build) <= BUILD
        assert set(service.get("healthcheck", {})) <= HEALTHCHECK
        assert isinstance(service.get("env_file", []), str | list)
        for dependency in service.get("depends_on", {}).values():
            assert set(dependency) == {"condition"}


@pytest.mark.parametrize("name", [BASE, GPU])
def test_one_image_for_trainer_and_service(name: str) -> None:
    trainer, service = services(name)["trainer"], services(name)["service"]
    assert trainer["image"] == service["image"]
    assert trainer["build"] == service["build"]


def test_the_images_for_cpu_and_gpu_have_names_of_their_own() -> None:
    assert services(BASE)["service"]["image"] != services(GPU)["service"]["image"]


def test_gpu_override_builds_cuda_torch_and_asks_for_one_gpu() -> None:
    assert set(services(GPU)) == set(OURS) < set(services(BASE))
    for service in services(GPU).values():
        assert service["build"]["args"] == {"TORCH_INDEX_URL": "", "TORCH_LOCK": "torch-cuda"}
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_the_service_waits_for_the_trainer_to_end_well() -> None:
    trainer, service = services(BASE)["trainer"], services(BASE)["service"]
    assert trainer["command"] == ["training", "defaults"]
    assert trainer["restart"] == "no"
    assert trainer["healthcheck"] == {"disable": True}
    assert service["depends_on"] == {"trainer": {"condition": "service_completed_successfully"}}
    assert service["restart"] == "unless-stopped"
    assert "healthcheck" not in service  # the image's own applies


def test_containers_are_closed() -> None:
    for service in services(BASE).values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108  (of the container)
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["init"] is True
        assert not {"privileged", "network_mode"} & set(service)
    assert {name: service["cap_add"] for name, service in services(BASE).items() if "cap_add" in service} == {
        OWNER: ["CHOWN"]
    }
    for name in OURS:
        assert "user" not in services(BASE)[name]  # the image's own, which is not root
    for name in THEIRS:
        uid, gid = map(int, services(BASE)[name]["user"].split(":"))
        assert uid > 0
        assert gid > 0


@pytest.mark.parametrize("name", THEIRS)
def test_images_of_others_are_pinned_and_watched(name: str) -> None:
    service = services(BASE)[name]
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+(-alpine)?", service["image"])
    program, *arguments = service["healthcheck"]["test"][1:]
    assert program in ("promtool", "wget")  # a program in the image; none of the images has curl
    assert arguments
    assert all(mount.endswith(":ro") for mount in service["volumes"] if mount.startswith("./"))
    assert all((ROOT / mount.split(":")[0]).is_dir() for mount in service["volumes"] if mount.startswith("./"))


def test_the_volume_of_prometheus_belongs_to_its_user_whatever_the_image() -> None:
    owner, prometheus = services(BASE)[OWNER], services(BASE)["prometheus"]
    assert owner["image"] == prometheus["image"]
    assert (owner["user"], owner["restart"], owner["command"]) == ("0:0", "no", [])
    [volume] = owner["volumes"]
    assert volume in prometheus["volumes"]
    _, folder, mode = volume.split(":")
    assert owner["entrypoint"] == ["chown", "-R", prometheus["user"], folder]
    assert mode == "nocopy"  # Docker gives an empty volume the owner of the image's folder again for every container


def test_no_container_may_take_all_memory() -> None:
    for name, service in services(BASE).items():
        limit = service["mem_limit"]
        assert limit == ("${PATHLINE_MEMORY:-4g}" if name in (*OURS, REPLICA) else "1g")
    for service in services(GPU).values():  # Compose 2 refuses two limits
        assert "limits" not in service["deploy"]["resources"]


def test_each_waits_for_the_one_it_reads_from() -> None:
    assert services(BASE)["prometheus"]["depends_on"] == {
        OWNER: {"condition": "service_completed_successfully"},
        "service": {"condition": "service_healthy"},
    }
    assert services(BASE)["grafana"]["depends_on"] == {"prometheus": {"condition": "service_healthy"}}
    assert services(BASE)["grafana"]["profiles"] == ["dashboards"]


def test_prometheus_is_asked_where_compose_puts_it() -> None:
    deploy = ROOT / "deploy"
    (job,) = yaml.safe_load((deploy / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["service:8000"]}]
    (source,) = yaml.safe_load((deploy / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_the_service_reads_what_the_trainer_writes() -> None:
    assert services(BASE)["trainer"]["volumes"] == [f"checkpoints:{FOLDER}/checkpoints", f"runs:{FOLDER}/runs"]
    assert services(BASE)["service"]["volumes"] == [f"checkpoints:{FOLDER}/checkpoints:ro"]
    assert {"checkpoints", "runs"} <= set(load(BASE)["volumes"])
    assert f"WORKDIR {FOLDER}\n" in (ROOT / "Dockerfile").read_text()


def test_only_this_machine_can_reach_the_service() -> None:
    assert services(BASE)["service"]["ports"] == ["127.0.0.1:${PATHLINE_PORT:-8000}:8000"]
    assert "ports" not in services(BASE)["trainer"]
    ports = [port for service in services(BASE).values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_replica_is_the_service_without_a_port_and_the_balancer_names_it() -> None:
    service, replica, balancer = (services(BASE)[name] for name in ("service", REPLICA, "balancer"))
    assert replica["profiles"] == balancer["profiles"] == ["fleet"]
    own = {"ports", "environment", "profiles"}
    assert {k: v for k, v in replica.items() if k not in own} == {k: v for k, v in service.items() if k not in own}
    assert "ports" not in replica
    assert replica["environment"].items() >= {("PATHLINE_DRAIN_S", service["environment"]["PATHLINE_DRAIN_S"])}
    conf = (ROOT / "deploy" / "nginx" / "pathline.conf").read_text()
    assert f"server {REPLICA}:8000 " in conf
    assert balancer["ports"][0].rpartition(":")[2] in conf.partition("listen ")[2].partition(";")[0]


def test_a_stop_leaves_time_to_drain() -> None:
    service = services(BASE)["service"]
    drain = float(service["environment"]["PATHLINE_DRAIN_S"])
    assert drain == Settings.model_fields["drain_s"].default
    assert seconds(service["stop_grace_period"]) >= drain + 10


def test_environment_names_are_settings() -> None:
    names = services(BASE)["service"]["environment"]
    assert {name.removeprefix("PATHLINE_").lower() for name in names} <= set(Settings.model_fields)
