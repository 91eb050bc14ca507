"""A fake service that keeps the contract, reachable without sockets (both clients) and at a real port (the CLI)."""

import base64
import io
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest
from pathline import AsyncClient, Client, RetryPolicy

Reply = tuple[int, dict[str, str], bytes]

SOLVERS = [
    {"name": "euler", "order": 1, "kind": "fixed", "embedded_order": None, "cost": "N"},
    {"name": "rk4", "order": 4, "kind": "fixed", "embedded_order": None, "cost": "4 N"},
    {"name": "dopri5", "order": 5, "kind": "fixed", "embedded_order": 4, "cost": "1 + 6 attempts"},
]
NPZ = {"content-type": "application/x-npz"}
JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream; charset=utf-8"}


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def problem(status: int, slug: str, detail: str = "because", headers: Any = None, **members: Any) -> Reply:
    document = {"type": f"/problems/{slug}", "title": slug, "status": status, "detail": detail, "request_id": "r-1"}
    return (
        status,
        {"content-type": "application/problem+json", **(headers or {})},
        json.dumps({**document, **members}).encode(),
    )


def request_in(body: bytes) -> Any:
    """The JSON of a body, which may be npz."""
    if not body.startswith(b"PK"):
        return json.loads(body)
    with np.load(io.BytesIO(body)) as arrays:
        return json.loads(str(arrays["request"]))


def resolved(body: dict[str, Any]) -> dict[str, Any]:
    """Return the solver of a request as a response names it; grids and options are left in its text."""
    text = body.get("solver", "dopri5").lower()
    name, steps, rtol = re.fullmatch(r"(\w+)(?:-(\d+))?(?:@([^/+]+))?.*", text).groups()  # type: ignore[union-attr]
    fixed = {} if steps is None else {"steps": int(steps)}
    fixed |= {key: body[key] for key in ("steps", "grid", "start") if key in body}
    if text == name:
        text += f"-{fixed['steps']}" if "steps" in fixed else f"@{body.get('rtol', 1e-5):g}".replace("e-0", "e-")
    if "max_step" in body:
        text += f"+max_step={body['max_step']:g}"
    coupled = {"error_control": "batch" if text.endswith("+batch") else "sample"}
    return {"name": name, **(fixed or {"rtol": float(rtol or body.get("rtol", 1e-5)), **coupled}), "text": text}


@dataclass
class FakeService:
    """Answers with samples that depend on (seed, index, solver); queued `replies` come first."""

    replies: list[Reply | Exception] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    change: Callable[[dict[str, Any], dict[str, Any]], None] = lambda arrays, meta: None
    version: int = 3

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Reply:
        self.seen.append({"method": method, "path": path, "headers": dict(headers), "body": body})
        if self.replies:
            reply = self.replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply
        if path == "/v1/models":
            listed = {"name": "moons", "version": 3, "event_shape": [2], "data_shape": [2], "status": "served"}
            return 200, JSON, json.dumps({"models": [listed]}).encode()
        if path == "/v1/models/moons":
            served = [{"version": 3, "card": {"event_shape": [2], "data_shape": [2]}}]
            return 200, JSON, json.dumps({"name": "moons", "serving": 3, "served": served}).encode()
        if path == "/v1/solvers":
            return 200, JSON, json.dumps({"solvers": SOLVERS}).encode()
        if (method, path) == ("POST", "/v1/sample/stream"):
            return self._stream(request_in(body))
        if method == "POST" and path.endswith("/frontier"):
            name = path.split("/")[3]
            wrong = problem(404, "unknown-model", f"no model {name}; there is: moons")
            return self._measured(request_in(body)) if name == "moons" else wrong
        if (method, path) != ("POST", "/v1/sample"):
            return problem(404, "no-such-route")
        return self._sample(request_in(body))

    def _stream(self, body: dict[str, Any]) -> Reply:
        status, headers, content = self._sample(body)
        if status != 200:
            return status, headers, content
        shares = [event("progress", {"nfe": 25 * k, "t": k / 2, "share": k / 2}) for k in (1, 2)]
        completed = event("completed", {"npz": base64.b64encode(content).decode()})
        return 200, SSE, b"".join([event("start", {"model": "moons"}), *shares, completed])

    def _measured(self, body: dict[str, Any]) -> Reply:
        """Points whose error falls with the steps; rk4-20 was measured beforehand, too."""
        budget = body.get("budget", {"max_error": 0.01})
        rows = []
        for text in body.get("solvers") or ["euler-4", "rk4-2", "rk4-20"]:
            if not re.fullmatch(r"\w+-\d+", text):
                return problem(422, "invalid-request", f"solvers: {text!r} is not understood")
            name, steps = text.split("-")
            error = {"euler": 1.0, "ab3": 0.2, "rk4": 0.1}[name] / int(steps)
            errors = {"p50": error / 4, "p95": error / 2, "p95_low": error / 3, "p95_high": error, "worst": error}
            cost = int(steps) * (4 if name == "rk4" else 1)
            facts = {"samples": body.get("num_samples", 512), "seed": body["seed"], "stored": text == "rk4-20"}
            facts |= {"conditions": "", "own_conditions": True, "ms": cost / 10, "best": name == "rk4", "failed": 0}
            rows.append({"solver": text, "nfe": float(cost), "nfe_most": cost, **errors, **facts})
        rows.sort(key=lambda row: row["nfe_most"])
        chosen = next((row for row in rows if row["p95_high"] <= budget["max_error"]), None)
        choice = None if chosen is None else {"solver": chosen["solver"], "promised_error": chosen["p95_high"]}
        verdict = f"{chosen['solver']}: the cheapest" if chosen else "no measured solver is within the budget"
        start = {"model": "moons", "version": 3, "seed": body["seed"], "num_samples": body.get("num_samples", 512)}
        last = {"points": rows, "choice": choice, "verdict": verdict, "tuned": "no plans were tuned", "complete": True}
        points = [event("point", row) for row in rows if not row["stored"]]
        first = event("start", start | {"reference": "dopri5@1e-07"})
        return 200, SSE, b"".join([first, *points, event("completed", last)])

    def _sample(self, body: dict[str, Any]) -> Reply:
        if body["model"] != "moons":
            return problem(404, "unknown-model", f"no model {body['model']}; there is: moons")
        n, seed, first = body["num_samples"], body["seed"], body.get("first_index", 0)
        solver = resolved(body)
        if "steps" in solver and "max_step" in body:
            message = "max_step is for error control"
            return problem(422, "invalid-request", message, errors=[{"field": "max_step", "message": message}])
        shift = {"euler": 1.0, "midpoint": 0.5, "rk4": 0.25, "dopri5": 0.0}[solver["name"]]
        index = np.arange(first, first + n)
        samples = np.stack([index + shift, np.full(n, seed % 1000)], 1).astype(np.float32)
        arrays: dict[str, Any] = {
            "samples": samples,
            "nfe": 50 + index % 7,
            "t": np.ones(n),
            "status": np.full(n, "success"),
            "trace_sample": np.zeros(2, np.int64),
            "trace_t": np.array([0.0, 0.5]),
            "trace_h": np.array([0.5, 0.5]),
            "trace_error": np.array([0.3, np.nan]),
            "trace_accepted": np.array([True, False]),
        }
        meta = {
            "model": "moons",
            "version": body.get("version", self.version),
            "checkpoint": "sha256:00",
            "seed": seed,
            "first_index": first,
            "deterministic": True,
            "solver": solver,
            "shape": [n, 2],
            "nfe": int(arrays["nfe"].max()),
            "nfe_per_sample": {"min": 50, "mean": 53.0, "max": 56},
            "status": "success",
            "failed": [],
            "noise": "philox-ndtri-v1",
            "latency": {"queue_s": 0.0, "solve_s": 0.1, "network_s": 0.09, "encode_s": 0.001, "total_s": 0.1},
        }
        self.change(arrays, meta)
        return 200, NPZ, npz(**arrays, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))

    npz = staticmethod(npz)
    problem = staticmethod(problem)

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer in the way of `httpx.MockTransport`."""
        status, headers, body = self.answer(request.method, request.url.path, request.headers, request.content)
        return httpx.Response(status, headers=headers, content=body)

    async def app(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Answer as an ASGI application."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        sent = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, headers, content = self.answer(scope["method"], scope["path"], sent, body)
        listed = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": listed})
        await send({"type": "http.response.body", "body": content})


FAST = RetryPolicy(max_attempts=4, base_s=0.001, cap_s=0.002)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client("http://fake", retry=FAST, transport=httpx.MockTransport(service.handle)) as client:
        yield client


@pytest.fixture
def async_client(service: FakeService) -> AsyncClient:
    return AsyncClient("http://fake", retry=FAST, transport=httpx.ASGITransport(service.app))


@pytest.fixture
def live(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the fake on a real port, and let PATHLINE_URL point to it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, content = service.answer(self.command, self.path, self.headers, body)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the name that the base class looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("PATHLINE_URL", url)
        yield url
        server.shutdown()
        thread.join()
