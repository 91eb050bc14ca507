"""The image's health check: ``python -m service.healthcheck`` exits with 0 if the service is ready.

It imports nothing but the standard library, as it runs every few seconds, and reads the same variables as the service.
A service whose health needs a key that is not among them (because a settings file has it) is healthy if it answers.
"""

import http.client
import os
import socket
import sys

_TIMEOUT_S = 4.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def main() -> int:
    """Return 0 if the service is ready, 1 if not."""
    path, host = _variable("UDS"), _variable("HOST")
    if path:
        connection: http.client.HTTPConnection = _UnixConnection(path)
    else:  # http.client, because urllib would use a proxy from the environment
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  (a comparison)
        connection = http.client.HTTPConnection(host, int(_variable("PORT") or 8000), timeout=_TIMEOUT_S)
    key = (_variable("API_KEYS") or _variable("ADMIN_KEY")).split(",")[0].strip().strip("'\"")
    try:
        connection.request("GET", "/readyz", headers={"X-API-Key": key} if key else {})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 1
    return 0 if status == 200 or (status == 401 and not key) else 1


def _variable(name: str) -> str:
    return os.environ.get(f"PATHLINE_{name}", "").strip().strip("'\"")


if __name__ == "__main__":
    sys.exit(main())
