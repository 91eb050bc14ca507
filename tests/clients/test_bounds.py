"""What a server may do to a client: bounded memory, bounded time, plain text, and no password shown."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from typing import Any

import httpcore
import httpx
import pathline
import pytest
from pathline import AsyncClient, Client, _calls, _decode
from pathline._wire import Arrival
from pathline.cli import main

from tests.clients.conftest import NPZ, SSE, FakeService, problem


@pytest.fixture
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_calls, _decode):
        monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)


@pytest.mark.usefixtures("_little")
def test_a_body_or_a_stream_without_end_is_given_up(service: FakeService, client: Client) -> None:
    service.replies = [(200, NPZ, b"x" * (1 << 21))]
    with pytest.raises(pathline.ProtocolError, match="sent more than 1,048,576 bytes; ask for fewer samples"):
        client.sample("moons")
    service.replies = [(200, SSE, b": beat\n" * (1 << 18))]
    with pytest.raises(pathline.ProtocolError, match="sent more than"):
        list(client.stream("moons"))
    service.replies = [(500, NPZ, b"x" * (1 << 21))] * 9
    with pytest.raises(pathline.ProtocolError, match="sent more than"):
        client.sample("moons")


@pytest.mark.usefixtures("_little")
def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(service: FakeService, client: Client) -> None:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples.npy", b"\0" * (1 << 21))
    assert len(buffer.getvalue()) < 4000
    service.replies = [(200, NPZ, buffer.getvalue())]
    with pytest.raises(pathline.ProtocolError, match="unpacks to more than 1,048,576 bytes"):
        client.sample("moons")


def test_a_trickle_ends_at_the_time_limit_and_a_slow_link_does_not() -> None:
    now = [0.0]
    trickle = Arrival(lambda: now[0])
    trickle.add(b"HTTP/1.1 200 OK\r\n\r\n")
    for now[0] in range(1, 40):
        assert trickle.left(40.0) == pytest.approx(40.0 - now[0], abs=0.01)
        assert trickle.add(b": beat\n") == b": beat\n"
    now[0] = 41.0
    with pytest.raises(httpcore.ReadTimeout):
        trickle.left(40.0)
    now[0] = 0.0
    link = Arrival(lambda: now[0])
    link.add(b"HTTP/1.1 200 OK\r\n\r\n")
    for now[0] in range(200):
        link.left(40.0)
        link.add(b"x" * (1 << 17))


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_the_time_of_a_head_passes_while_interim_responses_arrive(at_once: int) -> None:
    now = [0.0]
    arrival = Arrival(lambda: now[0])
    interim = b"HTTP/1.1 102 Processing\r\nContent-Length: 7\r\n\r\n"
    for now[0] in range(39):
        for place in range(0, len(interim), at_once):
            arrival.add(interim[place : place + at_once])
    now[0] = 39.9
    assert arrival.left(40.0) == pytest.approx(0.1, abs=0.05)
    arrival.add(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n")
    assert arrival.left(40.0) == 40.0
    body = b"5\r\nab\r\nc\r\n" + b"3fffffff;x=y\r\n"
    for place in range(0, len(body), at_once):
        arrival.add(body[place : place + at_once])
    arrival.begin()
    arrival.add(b"HTTP/1.1 200 OK\nTransfer-Encoding:chunked\n\n1\r\na\r\n")
    with pytest.raises(pathline.ProtocolError, match="claims to send 1,073,741,825 bytes"):
        arrival.add(b"40000001\r\n")


@pytest.mark.parametrize("depth", [100_000])
def test_nested_problems_lists_and_events_are_errors_of_the_sdk(
    service: FakeService, client: Client, depth: int
) -> None:
    nested = b'{"a":' * depth
    service.replies = [(400, {"content-type": "application/problem+json"}, nested)]
    with pytest.raises(pathline.APIError):
        client.sample("moons")
    service.replies = [(200, {"content-type": "application/json"}, nested)]
    with pytest.raises(pathline.ProtocolError):
        client.models()
    service.replies = [(200, SSE, b"event: progress\ndata: " + nested + b"\n\n")]
    with pytest.raises(pathline.ProtocolError):
        list(client.stream("moons"))


def test_the_text_of_a_server_does_not_command_the_terminal(service: FakeService, client: Client) -> None:
    service.replies = [problem(404, "unknown-model", "\x1b]0;owned\x07 \x9b2J no such model\r\nsecond line")]
    with pytest.raises(pathline.NotFound) as caught:
        client.sample("moons")
    assert str(caught.value).startswith("\ufffd]0;owned\ufffd \ufffd2J no such model\ufffd\nsecond line")
    service.replies = [problem(404, "unknown-model", "a" * 1_000_000)]
    with pytest.raises(pathline.NotFound) as long:
        client.sample("moons")
    assert 9_000 < len(str(long.value)) < 11_000
    service.replies = [(400, {"content-type": "text/plain"}, b"\x1b[2J")]
    with pytest.raises(pathline.APIError) as other:
        client.models()
    assert "\x1b" not in str(other.value)


@pytest.mark.usefixtures("live")
def test_the_command_prints_no_control_characters(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {"name": "\x1b[31mred", "version": 1, "event_shape": [2], "data_shape": [2], "status": "served"}
    service.replies = [(200, {"content-type": "application/json"}, json.dumps({"models": [listed]}).encode())]
    assert main(["models"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_name_and_password_in_the_url_are_sent_and_shown_nowhere(kind: Any) -> None:
    client = kind("https://anna:s3cret%21@there:9000/prefix", api_key="the-key")
    assert client.base_url == "https://there:9000/prefix"
    assert "s3cret" not in repr(client)


def test_the_key_goes_beside_the_name_and_password(service: FakeService) -> None:
    transport = httpx.MockTransport(service.handle)
    with Client("http://anna:s3cret@there", api_key="the-key", transport=transport) as client:
        result = client.sample("moons", 2, seed=0)
        sent = service.seen[-1]["headers"]
        assert (sent["authorization"], sent["x-api-key"]) == ("Basic YW5uYTpzM2NyZXQ=", "the-key")
        assert "s3cret" not in f"{result.url} {result!r} {result._repr_html_()}"
        service.replies = [problem(404, "unknown-model"), (200, {}, b"")]
        for _ in range(2):
            with pytest.raises(pathline.PathlineError) as caught:
                client.sample("moons")
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://anna:s3cret@there:99999", "ftp://anna:s3cret@there", "http://a:s3cret@[::1"])
def test_a_url_that_is_refused_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(pathline.InvalidValue) as caught:
        Client(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://there/v1/sample", "https://there"),
        ("https://anna:s3cret@there/prefix/v1/models/moons?x=1", "https://there/prefix"),
        ("https://there/", "https://there"),
    ],
)
def test_a_redirect_names_the_url_to_use(service: FakeService, client: Client, location: str, shown: str) -> None:
    service.replies = [(301, {"location": location}, b"")]
    with pytest.raises(pathline.ProtocolError, match=rf"it moved to {shown}; use that as the URL"):
        client.sample("moons")
