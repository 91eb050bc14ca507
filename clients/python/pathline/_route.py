"""How to reach a service: its URL and key, the route there, direct or through a proxy, and the certificates to trust.

This is the only place that reads these from the environment. httpx would read its proxies and certificates itself, but
it builds every proxy that is named, used or not, and passes errors on unexplained.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any
from urllib.request import getproxies

import httpx

from pathline._wire import T, watched
from pathline.errors import InvalidValue

try:
    VERSION = version("pathline")
except PackageNotFoundError:  # copied, not installed, as in the server's image
    VERSION = "0+copied"
AGENT = f"pathline-python/{VERSION}"
DEFAULT_URL = "http://127.0.0.1:8000"
LONGEST_S = 1e6  # of a timeout: sockets take no more than some platforms' time_t

_SCHEMES = ("http", "https", "socks5", "socks5h")


def _no_trust() -> ssl.SSLContext:
    """Return a TLS context that trusts nothing, for plain http; made without reading any certificates."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True)
class Route:
    """The route to a service.

    Attributes:
        host: Host of the service.
        proxy: The proxy to go through; None for a direct connection.
        variable: The variable that named the proxy, such as ``HTTPS_PROXY``.
        tls: The trusted certificates.
    """

    host: str = ""
    proxy: httpx.Proxy | None = None
    variable: str = ""
    tls: ssl.SSLContext = field(default_factory=_no_trust)

    @property
    def via(self) -> str:
        """The proxy in words, with a leading space and without its password; empty for a direct connection."""
        return "" if self.proxy is None else f" through the proxy {_shown(self.proxy.url)} that {self.variable} names"

    @property
    def detour(self) -> str:
        """What to do if the proxy is at fault."""
        return f"check the proxy, unset {self.variable}, or add {self.host} to NO_PROXY to connect directly"

    def transport(self, kind: type[T]) -> T:
        """Return a new pool of connections; an asynchronous one is of the event loop that first uses it."""
        return watched(kind(verify=self.tls, proxy=self.proxy, trust_env=False))


def route_to(address: str) -> Route:
    """Return the route to a service by the environment's settings; to this machine it is always direct.

    The variables are ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY`` (lower case takes precedence),
    ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``. Only those that matter for this address are read.

    Raises:
        InvalidValue: One of them cannot be used; the message names it.
    """
    url = httpx.URL(address)
    named = {} if _is_this_machine(url.host) else getproxies()
    scheme = next((scheme for scheme in (url.scheme, "all") if named.get(scheme)), None)
    exceptions = filter(None, re.split(r"[,\s]+", named.get("no", "").lower()))
    if scheme is None or any(_covers(rule, url) for rule in exceptions):
        return Route(url.host, tls=_trusted() if url.scheme == "https" else _no_trust())
    small = f"{scheme}_proxy"
    names = [name for name, value in os.environ.items() if name.lower() == small and value]
    variable = small if small in names else names[-1] if names else "the system"  # as `getproxies` chooses
    server = _proxy_url(named[scheme], variable, url.host)
    tls = _trusted() if "https" in (url.scheme, server.scheme) else _no_trust()
    return Route(url.host, httpx.Proxy(server, ssl_context=tls if server.scheme == "https" else None), variable, tls)


def _is_this_machine(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(name))  # short forms such as 127.1
        except (OSError, ValueError):
            return False
    inner = getattr(address, "ipv4_mapped", None) or address
    return inner.is_loopback or inner.is_unspecified


def _covers(rule: str, url: httpx.URL) -> bool:
    """Return whether NO_PROXY names a host: by name, domain, address or network, with or without a port."""
    scheme, _, place = rule.rpartition("://")
    if scheme not in ("", "all", url.scheme):
        return False
    if place == "*":
        return True
    match = re.fullmatch(r"\[(?P<v6>[^]]*)\](:(?P<port6>\d+))?|(?P<name>[^:]*)(:(?P<port>\d+))?", place)
    name, port = (place, None) if match is None else (match["v6"] or match["name"], match["port6"] or match["port"])
    if port is not None and int(port) != (url.port or {"http": 80, "https": 443}[url.scheme]):
        return False
    host = url.host.lower().rstrip(".")
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name or "", strict=False)
    except ValueError:  # one of them is a name
        domain = (name or "").lstrip("*").strip(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _proxy_url(text: str, variable: str, host: str) -> httpx.URL:
    advice = f"write it like http://proxy.example:3128, unset it, or add {host} to NO_PROXY to connect directly"
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except (httpx.InvalidURL, ValueError):  # it may hold a password, and is not repeated
        raise InvalidValue(f"{variable} is not the URL of a proxy; {advice}") from None
    if url.scheme not in _SCHEMES:
        raise InvalidValue(
            f"{variable} names the proxy {_shown(url)}, which has an unknown scheme (known: "
            f"{', '.join(f'{scheme}://' for scheme in _SCHEMES)}); {advice}"
        )
    if not url.host or not 0 < (url.port or 1) < 65536:
        raise InvalidValue(f"{variable} names the proxy {_shown(url)}, which is not a valid address; {advice}")
    if url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise InvalidValue(
            f"{variable} names the SOCKS proxy {_shown(url)}, for which a package is missing; install it with "
            f"pip install 'httpx[socks]', unset {variable}, or add {host} to NO_PROXY to connect directly"
        )
    return url


def _shown(url: httpx.URL) -> str:
    """Return a URL without name and password."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _trusted() -> ssl.SSLContext:
    """Return a TLS context with the certificates that the environment names, else those that come with httpx."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and folder and not any(map(os.path.isdir, folder.split(os.pathsep))):
        raise InvalidValue(
            f"SSL_CERT_DIR={folder!r} is not a folder; name a folder of certificates with hashed names, or unset it"
        )
    try:
        if file or folder:
            return ssl.create_default_context(cafile=file or None, capath=None if file else folder)
        return httpx.create_ssl_context(trust_env=False)
    except OSError as error:  # faults in the content of a file too
        reason = error.strerror or str(error)
        if error.filename is not None and error.filename == os.environ.get("SSLKEYLOGFILE"):
            what = f"SSLKEYLOGFILE={error.filename!r} cannot be written"
            raise InvalidValue(f"{what} ({reason}); name another file, or unset it") from None
        what = f"SSL_CERT_FILE={file!r}" if file else f"SSL_CERT_DIR={folder!r}" if folder else "the package certifi"
        raise InvalidValue(
            f"{what} gives no certificates ({reason}); name a readable file of certificates (PEM) in SSL_CERT_FILE"
            + (", or unset it" if file or folder else "")
        ) from None


def configured(
    base_url: str | None, api_key: str | None, timeout: float, headers: Mapping[str, str] | None, routed: bool
) -> tuple[str, Route, dict[str, Any]]:
    """Return the URL of a service, the route there, and the arguments of an httpx client beside its transport.

    Args:
        base_url, api_key, timeout, headers: See `Client`.
        routed: Whether the client connects by itself, rather than through a transport of the user.

    Raises:
        InvalidValue: The URL is not an http or https URL, or the environment or the key cannot be used.
        TypeError: The URL or the key is not a string.
        ValueError: The timeout is not above 0.
    """
    if not 0 < timeout <= LONGEST_S:
        raise ValueError(f"timeout={timeout} is not allowed; use seconds above 0, at most {LONGEST_S:,.0f}")
    url, login = _base_url(base_url)
    settings = {"base_url": url, "headers": _headers(api_key, headers, login), "trust_env": False}
    return url, route_to(url) if routed else Route(), settings


def _base_url(address: str | None) -> tuple[str, str]:
    """Return the URL to use, and the Authorization header that its name and password make; the URL is without them.

    It is the given one, else PATHLINE_URL, else the default of `make serve`.

    Raises:
        InvalidValue: It is not an http or https URL, or its port is out of range.
        TypeError: It is not a string.
    """
    if address is not None and not isinstance(address, str):
        raise TypeError(f"base_url={address!r} is not allowed; use a string like {DEFAULT_URL!r}")
    text = address if address is not None else os.environ.get("PATHLINE_URL", "").strip() or DEFAULT_URL
    shown = re.sub(r"//[^/]*@", "//...@", text)  # a message repeats no password
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError) as error:
        reason = f" ({error})" if shown == text else ""
        raise InvalidValue(f"{shown!r} is not a URL{reason}; use one like {DEFAULT_URL}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidValue(f"{shown!r} is not an http or https URL; use one like {DEFAULT_URL}")
    if url.port is not None and not 0 < url.port < 65536:
        raise InvalidValue(f"{shown!r} has the port {url.port}; use one from 1 to 65535, as in {DEFAULT_URL}")
    login = b64encode(f"{url.username}:{url.password}".encode()).decode() if url.userinfo else ""
    return str(url.copy_with(userinfo=b"")).rstrip("/"), f"Basic {login}" if login else ""


def _headers(api_key: str | None, own: Mapping[str, str] | None, login: str = "") -> dict[str, str]:
    """Return the headers of every request: the user agent, the key, and the user's own, which take precedence.

    Args:
        api_key: The key, or None for PATHLINE_API_KEY.
        own: The user's own headers.
        login: The Authorization header that a name and password in the URL make; the key then goes as X-API-Key.

    Raises:
        TypeError: The key is not a string.
        InvalidValue: It has characters that are not allowed in a header; the message does not repeat it.
    """
    key = os.environ.get("PATHLINE_API_KEY", "") if api_key is None else api_key
    if not isinstance(key, str):
        raise TypeError(f"api_key is a {type(key).__name__}; use a string, or None for PATHLINE_API_KEY")
    key = key.strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise InvalidValue(
            "the API key (api_key or PATHLINE_API_KEY) has a character that is not allowed in a header; use visible "
            "ASCII without spaces, exactly as you were given it"
        )
    shown = {"Authorization": login} if login else {}
    if key:
        shown |= {"X-API-Key": key} if login else {"Authorization": f"Bearer {key}"}
    return {"User-Agent": AGENT, **shown, **(own or {})}
