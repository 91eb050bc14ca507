"""``/docs``: the OpenAPI description as a page; Swagger UI comes from an installed package, nothing from elsewhere."""

import asyncio
import importlib.resources
from functools import cache

from fastapi import APIRouter, Request, Response

from service.errors import Kind, ProblemError

router = APIRouter(include_in_schema=False)

_FILES = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon-32x32.png": "image/png",
    "start.js": "text/javascript; charset=utf-8",
}
# Relative to the page, not to the script: it holds under a sub-path, too.
_START = b"""SwaggerUIBundle({url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null});"""
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Pathline: HTTP interface</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
}


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs() -> Response:
    """Show every address, with examples to try."""
    return Response(_PAGE, media_type="text/html", headers=_HEADERS)


@router.api_route("/docs/{name}", methods=["GET", "HEAD"])
async def file(request: Request, name: str) -> Response:
    """Return a file that the page needs."""
    if name not in _FILES:
        raise ProblemError(Kind.NO_ROUTE, f"there is nothing at {request.url.path}; / lists the addresses")
    content = await asyncio.to_thread(_read, name)
    return Response(content, media_type=_FILES[name], headers={"Cache-Control": "max-age=3600"})


@cache
def _read(name: str) -> bytes:
    if name == "start.js":
        return _START
    return (importlib.resources.files("fastapi_swagger.resources") / name).read_bytes()
