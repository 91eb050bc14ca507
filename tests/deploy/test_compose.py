"""The Compose files say what Compose 1.29 and 2 both understand, and keep the containers as closed as they can be."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).parents[2]
BASE, GPU = "docker-compose.yml", "docker-compose.gpu.yml"
FOLDER = "/var/lib/pathline"

# What the schema of Compose 1.29.2 allows, as far as these files might ever use it. Version 2 allows all of it.
TOP = {"services", "volumes", "networks", "secrets", "configs"}
BUILD = {"context", "dockerfile", "args", "labels", "cache_from", "network", "target", "shm_size", "extra_hosts"}
SERVICE_KEYS = """
    build cap_add cap_drop command cpus depends_on deploy devices entrypoint env_file environment expose extra_hosts
    group_add healthcheck hostname image init ipc labels logging mem_limit networks pids_limit ports profiles
    read_only restart secrets security_opt shm_size stop_grace_period stop_signal sysctls tmpfs ulimits user volumes
    working_dir
"""
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
        build = service["build"]
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
    assert set(services(GPU)) == set(services(BASE))
    for service in services(GPU).values():
        assert service["build"]["args"] == {"TORCH_INDEX_URL": ""}
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_the_service_waits_for_the_trainer_to_end_well() -> None:
    trainer, service = services(BASE)["trainer"], services(BASE)["service"]
    assert trainer["command"] == ["training", "defaults"]
    assert trainer["restart"] == "no"
    assert trainer["healthcheck"] == {"disable": True}
    assert service["depends_on"] == {"trainer": {"condition": "service_completed_successfully"}}
    assert service["restart"] == "unless-stopped"
    assert "healthcheck" not in service  # the image's own holds


def test_containers_are_closed() -> None:
    for service in services(BASE).values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108  (of the container)
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["init"] is True
        assert not {"user", "privileged", "cap_add", "network_mode"} & set(service)


def test_the_service_reads_what_the_trainer_writes() -> None:
    assert services(BASE)["trainer"]["volumes"] == [f"checkpoints:{FOLDER}/checkpoints", f"runs:{FOLDER}/runs"]
    assert services(BASE)["service"]["volumes"] == [f"checkpoints:{FOLDER}/checkpoints:ro"]
    assert load(BASE)["volumes"] == {"checkpoints": None, "runs": None}
    assert f"WORKDIR {FOLDER}\n" in (ROOT / "Dockerfile").read_text()


def test_only_this_machine_can_reach_the_service() -> None:
    assert services(BASE)["service"]["ports"] == ["127.0.0.1:${PATHLINE_PORT:-8000}:8000"]
    assert "ports" not in services(BASE)["trainer"]


def test_a_stop_leaves_time_to_drain() -> None:
    service = services(BASE)["service"]
    drain = float(service["environment"]["PATHLINE_DRAIN_S"])
    assert drain == Settings.model_fields["drain_s"].default
    assert seconds(service["stop_grace_period"]) >= drain + 10


def test_environment_names_are_settings() -> None:
    names = services(BASE)["service"]["environment"]
    assert {name.removeprefix("PATHLINE_").lower() for name in names} <= set(Settings.model_fields)
