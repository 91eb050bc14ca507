"""Pages about the HTTP interface: ``/docs`` (Swagger UI from an installed package) and ``/problems``, the errors."""

import html
import importlib.resources
import re
from functools import cache
from typing import Any

import orjson
from fastapi import Path, Request, Response
from typing_extensions import TypedDict

from service import examples
from service.errors import Kind, ProblemError
from service.http.context import context_of
from service.http.negotiation import choose
from service.openapi import PAGES, Responses, Router, shown
from service.responses.schemas import ProblemBody

router = Router(tags=[PAGES])

# Not StaticFiles: it would also send the Python files of the package, and start.js is not a file.
_FILES = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon-32x32.png": "image/png",
    "start.js": "text/javascript; charset=utf-8",
}
# Relative to the page, not to the script, so that it also works under a sub-path.
_START = b"""SwaggerUIBundle({url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null});"""
_LAYOUT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<link rel="icon" href="{root}docs/favicon-32x32.png">
{content}
</html>
"""
_DOCS = """<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>"""
_PROBLEM = """<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 45rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ overflow-x: auto; padding: 1rem; border: 1px solid #8888; border-radius: .3rem; }}
</style>
<main>
<h1>{title}</h1>
{content}
<p><a href="{root}problems">All errors</a>, <a href="{root}docs">HTTP interface</a>,
<a href="{root}.">playground</a></p>
</main>"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
}


class Explanation(TypedDict):
    """An error, explained: what causes it and what to do."""

    type: str
    title: str
    status: int
    cause: str
    remedy: str
    example: ProblemBody


class Explanations(TypedDict):
    """Response of ``GET /problems``."""

    problems: list[Explanation]


def _explanation(kind: Kind, url_path: str = "") -> Explanation:
    return {
        "type": url_path + kind.type,
        "title": kind.title,
        "status": kind.status,
        "cause": kind.cause,
        "remedy": kind.remedy,
        "example": examples.ERRORS[kind],
    }


def _either(model: Any, **values: Any) -> Responses:
    """Return the `responses` of a route that answers with JSON or a page."""
    page = {"schema": {"type": "string"}} | shown({"page": "<!doctype html>"})
    return {200: {"model": model, "content": {"application/json": shown(values), "text/html": page}}}


@router.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
async def docs() -> Response:
    """Show all endpoints, with examples to try."""
    page = _LAYOUT.format(title="Pathline: HTTP interface", root="", content=_DOCS)
    return Response(page, media_type="text/html", headers=_HEADERS)


@router.api_route("/docs/{name}", methods=["GET", "HEAD"], include_in_schema=False)
def file(request: Request, name: str) -> Response:
    """Return a file of the page."""
    if name not in _FILES:
        raise ProblemError(Kind.NO_ROUTE, f"there is nothing at {request.url.path}; / lists the addresses")
    return Response(_read(name), media_type=_FILES[name], headers={"Cache-Control": "max-age=3600"})


@router.read(
    "/problems", "List errors", responses=_either(Explanations, problems={"problems": [_explanation(Kind.MALFORMED)]})
)
async def problem_list(request: Request) -> Response:
    """List all errors that the service answers with, as JSON or as a page."""
    explanations = [_explanation(kind, context_of(request.scope).url_path) for kind in Kind]
    rows = "".join(
        f'<li><a href="problems/{kind.slug}">{kind.status} {html.escape(kind.title)}</a></li>' for kind in Kind
    )
    return _json_or_page(request, {"problems": explanations}, "Errors", f"<ul>{rows}</ul>", "")


@router.read(
    "/problems/{slug}",
    "Explain an error",
    Kind.NO_ROUTE,
    responses=_either(Explanation, overloaded=_explanation(Kind.OVERLOADED)),
)
async def problem(
    request: Request,
    slug: str = Path(
        description="last part of an error's `type`", openapi_examples={"overloaded": {"value": "overloaded"}}
    ),
) -> Response:
    """Explain the error with this `type`: what causes it and what to do, as JSON or as a page."""
    kind = next((kind for kind in Kind if kind.slug == slug), None)
    if kind is None:
        raise ProblemError(Kind.NO_ROUTE, f"there is no error {slug!r}; /problems lists all errors")
    explanation = _explanation(kind, context_of(request.scope).url_path)
    example = orjson.dumps(examples.ERRORS[kind], option=orjson.OPT_INDENT_2).decode()
    content = f"""<p>HTTP status {kind.status}, type <code>{explanation["type"]}</code></p>
<h2>Cause</h2><p>{_code(kind.cause)}</p>
<h2>What to do</h2><p>{_code(kind.remedy)}</p>
<h2>Example</h2><pre tabindex="0">{html.escape(example)}</pre>"""
    return _json_or_page(request, explanation, kind.title, content, "../")


def _code(text: str) -> str:
    """Return a text as HTML, with text between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _json_or_page(
    request: Request, document: Explanation | Explanations, title: str, content: str, root: str
) -> Response:
    """Return what the client prefers: a document, or a page with a title in HTML."""
    accepted = choose(context_of(request.scope).header(b"accept"), ("application/json", "text/html"))
    if accepted == "application/json":
        return Response(orjson.dumps(document), media_type=accepted, headers={"Vary": "Accept"})
    main = _PROBLEM.format(title=html.escape(title), content=content, root=root)
    page = _LAYOUT.format(title=f"{html.escape(title)} - Pathline", root=root, content=main)
    return Response(page, media_type=accepted, headers=_HEADERS | {"Vary": "Accept"})


@cache
def _read(name: str) -> bytes:
    if name == "start.js":
        return _START
    return (importlib.resources.files("fastapi_swagger.resources") / name).read_bytes()
