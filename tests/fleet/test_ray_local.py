"""Starting and joining a Ray cluster, with a pretended Ray."""

import os
import socket
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.ray_jobs import OnRay, join
from tests import processes


@pytest.fixture
def _refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise Exception("The node timed out during startup.\nSome details.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_new_cluster_is_local_and_sends_no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[dict[str, Any]] = []
    ray = SimpleNamespace(init=lambda **each: options.append(each))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(os, "environ", {})
    assert join(2) is ray
    assert (options[0]["num_cpus"], options[0]["_node_ip_address"]) == (2, "127.0.0.1")
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.usefixtures("_refuses")
def test_a_cluster_that_does_not_start_is_an_error_of_one_line() -> None:
    with pytest.raises(FleetError) as raised:
        join(2)
    assert str(raised.value) == (
        "Ray did not start on this machine: The node timed out during startup. Run this again."
    )


@pytest.mark.usefixtures("_refuses")
def test_a_cluster_that_cannot_be_joined_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(FleetError, match=f"^cannot join the Ray cluster at RAY_ADDRESS={address}: The node timed"):
            join()


@pytest.mark.usefixtures("_refuses")
@pytest.mark.parametrize("place", ["127.0.0.1:", "127.0.0.1:99999"])
def test_an_address_at_which_nothing_listens_is_named(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    address = f"{place}{processes.free_port()}" if place.endswith(":") else place
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(FleetError, match=f"^cannot reach the Ray cluster at RAY_ADDRESS={address}: "):
        join()


def test_a_task_that_fails_by_a_time_limit_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class RayError(Exception):
        pass

    class RayTaskError(RayError, TimeoutError):
        """What Ray makes of the TimeoutError of a task: both."""

    class Task:
        def __init__(self, *_: Any) -> None:
            pass

        def future(self) -> Future[None]:
            future = Future[None]()
            future.set_exception(RayTaskError("the store did not respond"))
            return future

    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError),
        is_initialized=lambda: True,
        remote=lambda **_: lambda _: SimpleNamespace(remote=Task),
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "here"),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    error = OnRay("memory://x", {}, 1, 1, gpu=False).make(0, print)
    assert str(error) == "RayTaskError: the store did not respond"
