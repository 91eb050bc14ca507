"""The service under a path of a proxy that leaves it in the address, as ``/pathline/v1/sample``."""

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class SubPath:
    """ASGI middleware: takes the path in front off the address; what comes without it is left as it is.

    The setting alone decides. A header such as X-Forwarded-Prefix could be sent by anybody, and whatever a proxy
    forbids by its path would be open to those who put another one in front.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":
            if scope["path"] == self._root and scope["method"] in ("GET", "HEAD"):  # links of the page need the slash
                query = scope.get("query_string", b"").decode("latin-1")
                await RedirectResponse(f"{self._root}/{query and '?'}{query}")(scope, receive, send)
                return
            if scope["path"].startswith(f"{self._root}/"):
                scope["path"] = scope["path"][len(self._root) :]  # in place: middleware around sees the route
        await self._app(scope, receive, send)
