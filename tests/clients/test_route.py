"""Proxies and certificates named by the environment; this machine is always reached directly."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pathline
import pytest
from pathline import AsyncClient, Client, RetryPolicy
from pathline._route import route_to
from pathline.cli import main

from tests.clients.test_transport import answering

TWICE = RetryPolicy(max_attempts=2, base_s=0.001)
MODELS = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{"models": []}'
REFUSED = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
ASKED = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
BROKEN = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nhello"
DEAD = "http://127.0.0.1:9"

BAD = [
    {"HTTP_PROXY": DEAD, "HTTPS_PROXY": DEAD},
    {"http_proxy": "http://[bad"},
    {"ALL_PROXY": "socks5://127.0.0.1:9"},
    {"all_proxy": "socks://127.0.0.1:9/"},
    {"NO_PROXY": "[::1]"},
    {"NO_PROXY": "localhost,[::1]:x,,http://", "HTTP_PROXY": DEAD},
    {"SSL_CERT_FILE": "/nowhere.pem"},
    {"SSL_CERT_DIR": "/nowhere"},
    {"SSLKEYLOGFILE": "/nowhere/keys"},
]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("SSL"):
            monkeypatch.delenv(name)


def ask(kind: type, url: str, **options: Any) -> Any:
    """Request the models with one of the clients."""
    if kind is Client:
        with Client(url, retry=TWICE, **options) as client:
            return client.models()

    async def run() -> Any:
        async with AsyncClient(url, retry=TWICE, **options) as client:
            return await client.models()

    return asyncio.run(run())


both = pytest.mark.parametrize("kind", [Client, AsyncClient])


@both
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_this_machine_is_reached_straight(kind: type, bad: dict[str, str], live: str, monkeypatch: Any) -> None:
    for name, value in bad.items():
        monkeypatch.setenv(name, value)
    assert [info.name for info in ask(kind, live)] == ["moons"]
    assert main(["models"]) == 0


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost.", "my.localhost", "127.0.0.1", "127.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"),
        *("0.0.0.0", "[::]"),  # noqa: S104 - addresses to connect to
    ],
)
def test_names_of_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", DEAD)
    assert route_to(f"http://{host}:8000").proxy is None
    assert route_to(f"https://{host}").proxy is None


@pytest.mark.parametrize("host", ["localhost.example", "128.0.0.1", "10.0.0.1", "[fe80::1]", "a", "[::ffff:10.0.0.1]"])
def test_names_of_others(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", DEAD)
    route = route_to(f"http://{host}:8000")
    assert (route.proxy is not None, route.variable) == (True, "ALL_PROXY")


@pytest.mark.parametrize(
    ("named", "url", "proxy", "variable"),
    [
        ({"HTTP_PROXY": "http://a:1"}, "http://far", "http://a:1", "HTTP_PROXY"),
        ({"HTTP_PROXY": "http://a:1"}, "https://far", None, ""),
        ({"HTTP_PROXY": "http://a:1", "ALL_PROXY": "http://b:2"}, "https://far", "http://b:2", "ALL_PROXY"),
        ({"HTTP_PROXY": "http://a:1", "ALL_PROXY": "socks://b:2"}, "http://far", "http://a:1", "HTTP_PROXY"),
        ({"HTTP_PROXY": "http://a:1", "http_proxy": "b:2"}, "http://far", "http://b:2", "http_proxy"),
        ({"HTTP_PROXY": "http://a:1", "http_proxy": ""}, "http://far", None, ""),
        ({"HTTPS_PROXY": "http://u:pass@a:1"}, "https://far", "http://a:1", "HTTPS_PROXY"),
        ({"HTTP_PROXY": "http://a:1", "REQUEST_METHOD": "GET"}, "http://far", None, ""),  # a CGI script: a header
    ],
)
def test_the_proxy_that_is_used(
    named: dict[str, str], url: str, proxy: str | None, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    route = route_to(url)
    assert route.variable == variable
    assert route.via == ("" if proxy is None else f" through the proxy {proxy} that {variable} names")


@pytest.mark.parametrize(
    ("rules", "url", "straight"),
    [
        ("*", "http://far.example", True),
        ("far.example", "http://far.example", True),
        ("far.example", "http://a.FAR.example", True),
        (".far.example", "http://far.example", True),
        ("*.far.example", "http://a.far.example", True),
        ("far.example", "http://sofar.example", False),
        ("far.example:8000", "http://far.example:8000", True),
        ("far.example:8000", "http://far.example", False),
        ("far.example:80", "http://far.example", True),
        ("10.0.0.0/8", "http://10.1.2.3:8000", True),
        ("10.0.0.1/8", "http://10.1.2.3", True),
        ("10.1.2.3", "http://10.1.2.3", True),
        ("10.0.0.0/8", "http://11.1.2.3", False),
        ("10.0.0.0/8", "http://10.example", False),
        ("[fd00::1]", "http://[fd00::1]:8000", True),
        ("[fd00::1]:8000", "http://[fd00::1]:9000", False),
        ("fd00::/8", "http://[fd00::1]", True),
        ("https://far.example", "http://far.example", False),
        ("all://far.example", "http://far.example", True),
        ("a, b far.example", "http://far.example", True),
        ("[, :, ], ::, /8, http://, .", "http://far.example", False),
    ],
)
def test_exceptions(rules: str, url: str, straight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", DEAD)
    monkeypatch.setenv("NO_PROXY", rules)
    assert (route_to(url).proxy is None) is straight


@both
@pytest.mark.parametrize(
    ("name", "value", "url", "message"),
    [
        ("HTTP_PROXY", "http://u:pass@a:b", "http://far", "HTTP_PROXY is not the URL of a proxy; write it like http"),
        ("http_proxy", "http://:3128", "http://far", "http_proxy names the proxy http://:3128, which is not a"),
        ("HTTPS_PROXY", "http://a:99999", "https://far", "HTTPS_PROXY names the proxy http://a:99999, which is not"),
        ("ALL_PROXY", "socks5://u:pass@a:1", "http://far", "ALL_PROXY names the SOCKS proxy socks5://a:1, for which a"),
        (
            "all_proxy",
            "socks://a:1/",
            "http://far",
            "all_proxy names the proxy socks://a:1, which has an unknown scheme",
        ),
        ("SSL_CERT_FILE", "/nowhere.pem", "https://far", "SSL_CERT_FILE='/nowhere.pem' gives no certificates (No such"),
        ("SSL_CERT_FILE", __file__, "https://far", f"SSL_CERT_FILE={__file__!r} gives no certificates ("),
        ("SSL_CERT_FILE", "/nowhere.pem", "https://localhost", "SSL_CERT_FILE='/nowhere.pem' gives no certificates ("),
        ("SSL_CERT_DIR", "/nowhere", "https://far", "SSL_CERT_DIR='/nowhere' is not a folder"),
        ("SSLKEYLOGFILE", "/nowhere/x", "https://far", "SSLKEYLOGFILE='/nowhere/x' cannot be written (No such file"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_is_sent(
    kind: type, name: str, value: str, url: str, message: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pathline._route.find_spec", lambda name: None)
    monkeypatch.setenv(name, value)
    with pytest.raises(pathline.InvalidValue) as caught:
        kind(url)
    assert str(caught.value).startswith(message)
    assert "pass" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    if kind is Client:
        for command in (["models"], ["sample", "moons"], ["bench", "moons"]):
            assert main([*command, "--url", url]) == 2
            out, err = capsys.readouterr()
            assert (out, err) == ("", f"pathline: {caught.value}\n")


def test_an_existing_folder_of_certificates_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", f"/nowhere{os.pathsep}{tmp_path}")
    assert route_to("https://far").tls.get_ca_certs() == []


def test_certificates_are_read_where_they_matter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tls = route_to("http://far").tls
    assert (tls.get_ca_certs(), tls.verify_mode.name, tls.check_hostname) == ([], "CERT_REQUIRED", True)
    assert len(route_to("https://far").tls.get_ca_certs()) > 50
    monkeypatch.setenv("HTTP_PROXY", "https://a:1")
    assert len(route_to("http://far").tls.get_ca_certs()) > 50


@both
def test_a_proxy_that_works(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(MODELS) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        assert ask(kind, "http://pathline.invalid:8000") == []


@both
@pytest.mark.parametrize("url", ["http://pathline.invalid:8000", "https://pathline.invalid"])
def test_a_dead_proxy_is_named(kind: type, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", DEAD)
    with pytest.raises(pathline.TransportError) as caught:
        ask(kind, url)
    assert f"cannot connect to {url} through the proxy {DEAD} that ALL_PROXY names (" in str(caught.value)
    assert "unset ALL_PROXY, or add pathline.invalid to NO_PROXY" in str(caught.value)


Case = tuple[bytes, str, type[pathline.PathlineError], int]
REPLIES: list[Case] = [
    (REFUSED, "https", pathline.TransportError, 1),
    (ASKED, "https", pathline.TransportError, 1),
    (ASKED, "http", pathline.TransportError, 1),
    (BROKEN, "https", pathline.TransportError, 2),
    (BROKEN, "http", pathline.Unavailable, 2),
    (REFUSED, "http", pathline.AccessDenied, 1),
    (PAGE, "http", pathline.ProtocolError, 1),
    (b"", "http", pathline.TransportError, 2),
    (b"", "https", pathline.TransportError, 2),
]


@both
@pytest.mark.parametrize(("reply", "scheme", "error", "attempts"), REPLIES)
def test_what_a_proxy_answers_itself(
    kind: type, reply: bytes, scheme: str, error: type[pathline.PathlineError], attempts: int, monkeypatch: Any
) -> None:
    with answering(reply) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy)
        with pytest.raises(error) as caught:
            ask(kind, f"{scheme}://pathline.invalid:8000")
    message = str(caught.value)
    assert f"through the proxy {proxy} that ALL_PROXY names" in message
    assert "unset ALL_PROXY, or add pathline.invalid to NO_PROXY" in message
    assert (type(caught.value), caught.value.attempts) == (error, attempts)


@both
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_transport_of_the_user_is_left_alone(
    kind: type, bad: dict[str, str], service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bad.items():
        monkeypatch.setenv(name, value)
    given: Callable[..., Any] = httpx.MockTransport if kind is Client else httpx.ASGITransport
    transport = given(service.handle if kind is Client else service.app)
    assert len(ask(kind, "https://pathline.invalid", transport=transport)) == 1


@both
@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_url_is_the_default_and_space_around_one_does_not_count(
    kind: type, blank: str, live: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATHLINE_URL", f"{blank}{live}{blank}")
    assert kind().base_url == live
    monkeypatch.setenv("PATHLINE_URL", blank)
    assert kind().base_url == "http://127.0.0.1:8000"
