"""The playground: the page at ``/``, its files under ``/static``."""

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fastapi import Request, Response
from starlette.responses import JSONResponse

from service.errors import Kind, ProblemError
from service.http.context import context_of
from service.openapi import PAGES, Responses, Router, shown

router = Router(tags=[PAGES])

_FOLDER = Path(__file__).parents[1] / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE_HEADERS = {
    # Nothing from elsewhere is loaded or run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
_LINKS = {
    "page": ".",
    "sample": "v1/sample",
    "models": "v1/models",
    "solvers": "v1/solvers",
    "live": "livez",
    "ready": "readyz",
    "metrics": "metrics",
    "docs": "docs",
    "openapi": "openapi.json",
    "inference_protocol": "v2",
}
"""Addresses relative to the page, as a proxy may serve it under another path."""


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Return the content and the ETag of each file by name; they are few and stay in memory.

    The one called "/" is the page with the addresses of its modules filled in. Without a list of them, a browser learns
    of each module from the one that imports it, one round trip after another.
    """
    contents = {path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in _TYPES}
    imports = b"".join(content for name, content in contents.items() if name.endswith(".js"))
    modules = sorted(set(re.findall(rb'from "\./([\w.-]+)"', imports)))
    links = b"\n".join(b'<link rel="modulepreload" href="static/%s">' % name for name in modules)
    contents["/"] = contents["index.html"].replace(b"<!-- MODULES -->", links)
    return {name: (content, f'"{hashlib.sha256(content).hexdigest()[:32]}"') for name, content in contents.items()}


def _sent(request: Request, name: str, headers: Mapping[str, str] = _PAGE_HEADERS) -> Response:
    """Return a file; 304 if the client has it."""
    content, etag = _files()[name]
    headers = {**headers, "ETag": etag, "Cache-Control": "no-cache"}  # a page never mixes files of two releases
    tags = (context_of(request.scope).header(b"if-none-match") or "").split(",")
    if not {etag, "*"}.isdisjoint(tag.strip().removeprefix("W/") for tag in tags):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES.get(Path(name).suffix, _TYPES[".html"]))


_CONTENT = {
    "text/html": {"schema": {"type": "string"}} | shown({"page": "<!doctype html>"}),
    "application/json": {"schema": {"type": "object"}} | shown({"links": {"service": "pathline", "links": _LINKS}}),
}
_ANSWERS: Responses = {200: {"content": _CONTENT}, 304: {"description": "The page has not changed"}}


@router.read("/", "Open the playground", responses=_ANSWERS)
async def index(request: Request) -> Response:
    """Show the playground; a client that accepts JSON but not HTML gets the addresses of the service."""
    accept = context_of(request.scope).header(b"accept") or ""
    if "application/json" in accept and "text/html" not in accept:
        return JSONResponse({"service": "pathline", "links": _LINKS}, headers={"Vary": "Accept"})
    return _sent(request, "/", _PAGE_HEADERS | {"Vary": "Accept"})


@router.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    """Send one file of the page."""
    if name not in _files():
        raise ProblemError(Kind.NO_ROUTE, f"the page has no file {name!r}")
    return _sent(request, name)
