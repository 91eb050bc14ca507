"""The playground: the page at ``/``, its files under ``/static``."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fastapi import Request, Response
from starlette.responses import JSONResponse

from service.errors import Kind, ProblemError
from service.http.context import context_of
from service.http.negotiation import accepts_coding
from service.openapi import PAGES, Responses, Router, shown

router = Router(tags=[PAGES])

_FOLDER = Path(__file__).parents[1] / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CHECK_EACH_TIME = "no-cache"  # with an ETag, so that a page never mixes files of two releases
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


@dataclass(frozen=True)
class _File:
    """A file to send."""

    content: bytes
    media_type: str
    cache: str = _CHECK_EACH_TIME

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.content, compresslevel=6, mtime=0)

    def response(self, request: Request, headers: dict[str, str] | None = None) -> Response:
        """Return the file, compressed if it is large and the client accepts that; 304 if the client has it."""
        headers = {"Vary": "Accept-Encoding", **(headers or {}), "ETag": self.etag, "Cache-Control": self.cache}
        tags = (context_of(request.scope).header(b"if-none-match") or "").split(",")
        if not {self.etag, "*"}.isdisjoint(tag.strip().removeprefix("W/") for tag in tags):
            return Response(status_code=304, headers=headers)
        large = len(self.content) > 1024
        if large and accepts_coding("gzip", context_of(request.scope).header(b"accept-encoding")):
            return Response(self.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=self.media_type)
        return Response(self.content, headers=headers, media_type=self.media_type)


@cache
def _files() -> dict[str, _File]:
    """Return the files of the page by name; they are few and stay in memory."""
    found = (path for path in _FOLDER.iterdir() if path.suffix in _TYPES)
    return {path.name: _File(path.read_bytes(), _TYPES[path.suffix]) for path in found}


@cache
def _page() -> _File:
    """Return the page, with the addresses of the modules filled in.

    Without a list of them, a browser learns of each module from the one that imports it, one round trip after another.
    """
    page = _files()["index.html"]
    imports = b"".join(file.content for name, file in _files().items() if name.endswith(".js"))
    modules = sorted(set(re.findall(rb'from "\./([\w.-]+)"', imports)))
    links = b"\n".join(b'<link rel="modulepreload" href="static/%s">' % name for name in modules)
    content = page.content.replace(b"<!-- MODULES -->", links)
    return _File(content, page.media_type)


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
    return _page().response(request, _PAGE_HEADERS | {"Vary": "Accept, Accept-Encoding"})


@router.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    """Send one file of the page."""
    file = _files().get(name)
    if file is None:
        raise ProblemError(Kind.NO_ROUTE, f"the page has no file {name!r}")
    return file.response(request, _PAGE_HEADERS)
