"""`python -m models import` on the command line."""

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from models.__main__ import main
from models.importing.command import refusal

from .conftest import CONFIG


@pytest.fixture
def command(trained: dict[str, Tensor], saved: Callable[..., Path], tmp_path: Path) -> list[str]:
    file = saved({"model": trained})
    root = str(tmp_path / "repository")
    return ["import", str(file), "--name", "points", "--architecture", "residual_mlp", "--models-dir", root]


def test_import_check_and_list(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--config", json.dumps(CONFIG), "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "now: pathline sample points"
    assert lines[0] == "weights: 21 tensors, raw, under the prefix 'model.'"
    assert lines[1] == "convention: noise at 0, time scale 1, sign +1"
    assert lines[2] == f"saved: {tmp_path / 'repository' / 'points' / '1'}"
    assert lines[3].startswith("1000 samples of points 1, seed 0, heun2-10, shape [1000, 2]")
    spread = float(lines[4].split("spread ")[1].split(",")[0])
    assert spread == pytest.approx(2.0, abs=0.2)  # points at +-2
    assert any("@" in line for line in lines[5:])
    assert not any("warning" in line for line in lines)
    assert main(["list", "--models-dir", str(tmp_path / "repository")]) == 0
    assert "points" in capsys.readouterr().out


SERVED = {"status": "served", "unavailable": []}
REFUSED = {
    "status": "unavailable",
    "unavailable": [{"version": 1, "reason": "net/1: is a program; set PATHLINE_ALLOW_PROGRAMS=true to serve it"}],
}


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ([(404, {}), (200, REFUSED)], "refuses it: net/1: is a program"),
        ([(404, {}), (200, SERVED)], "serves it"),
        ([(401, {})], "it holds a program, which a service refuses unless"),
        ([(200, ["odd"])], "it holds a program, which a service refuses unless"),
    ],
)
def test_a_program_is_said_to_be_refused_by_the_service_that_runs(
    answers: list[tuple[int, Any]], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models/net"
            status, body = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PATHLINE_URL", f"http://127.0.0.1:{server.server_port}")
        first, *rest = refusal("net")
        assert line in first
        assert rest == (["stop it, and start it with PATHLINE_ALLOW_PROGRAMS=true"] if "refuses it" in line else [])
        server.shutdown()
    assert refusal("net")[0].startswith("it holds a program"), "nothing listens"


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:port", "http://["])
def test_an_address_that_is_none_is_no_fault_of_the_import(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_URL", url)
    assert refusal("net")[0].startswith("it holds a program, which a service refuses unless")


def test_nor_is_a_server_that_does_not_speak_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-other\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        monkeypatch.setenv("PATHLINE_URL", f"http://127.0.0.1:{other.getsockname()[1]}")
        assert refusal("net")[0].startswith("it holds a program, which a service refuses unless")
        thread.join()


def test_dependent_noise_is_declared_in_the_card(command: list[str], tmp_path: Path) -> None:
    for version, flags in enumerate(([], ["--noise-independent", "no"]), 1):
        assert main([*command, "--config", json.dumps(CONFIG), *flags]) == 0
        card = json.loads((tmp_path / "repository" / "points" / str(version) / "card.json").read_text())
        assert card.get("noise_independent") is (False if flags else None)


def test_a_wrong_direction_is_seen_in_the_check(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--config", json.dumps(CONFIG), "--sign", "-1", "--check"]) == 0
    assert "sign as declared looks wrong" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_configs_from_files(command: list[str], tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"config.{suffix}"
    lines = [f"{name} = {value}" for name, value in CONFIG.items()]
    file.write_text(json.dumps(CONFIG) if suffix == "json" else "\n".join(lines))
    assert main([*command, "--config", str(file)]) == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "--config"),
        ("nothing.json", "cannot be read"),
        ("[1]", "cannot be read"),
        ('{"dim": 3}', "key"),
    ],
)
def test_refusals_are_one_line(
    command: list[str], config: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*command, "--config", config]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("refused: ")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "repository").exists()


def test_the_architecture_must_be_named(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command[:4], *command[6:]]) == 1
    assert "--architecture is missing" in capsys.readouterr().err


def test_a_config_of_very_deep_json_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.json").write_text('{"dim": ' + "[" * 200_000 + "]" * 200_000 + "}")
    assert main([*command, "--config", str(tmp_path / "deep.json")]) == 1
    assert capsys.readouterr().err.startswith("refused: --config")
