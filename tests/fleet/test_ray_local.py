"""Errors of joining a Ray cluster, with a pretended Ray."""

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.ray_local import join
from tests import processes


@pytest.fixture
def _refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise Exception("The node timed out during startup.\nSome details.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


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
@pytest.mark.parametrize("address", [f"127.0.0.1:{processes.free_port()}", "127.0.0.1:99999", "nowhere.invalid:1"])
def test_an_address_at_which_nothing_listens_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(FleetError, match=f"^cannot reach the Ray cluster at RAY_ADDRESS={address}: "):
        join()
