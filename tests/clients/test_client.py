from __future__ import annotations

import asyncio
import dataclasses
import gc
import inspect
import json
import pydoc
import re
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pathline
import pytest
from pathline import AsyncClient, Client
from pathline._info import model_of
from pathline.errors import ProtocolError

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService


ANSWER = {"model": "moons", "shape": [4, 2], "digest": "sha256:0", "environment": {}}


def bodies(service: FakeService) -> list[dict[str, Any]]:
    return [json.loads(seen["body"]) for seen in service.seen if seen["path"] == "/v1/sample"]


def test_only_what_was_given_is_sent(service: FakeService, client: Client) -> None:
    client.sample("moons", 3, solver="rk4", steps=20, seed=2**63 - 1)
    assert bodies(service) == [{"model": "moons", "num_samples": 3, "seed": 2**63 - 1, "solver": "rk4", "steps": 20}]
    headers = service.seen[0]["headers"]
    assert headers["accept"] == "application/x-npz"
    assert headers["user-agent"] == f"pathline-python/{pathline.__version__}"


def test_numpy_values_are_understood(service: FakeService, client: Client) -> None:
    x0 = np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)
    result = client.sample("moons", seed=np.int64(4), x0=x0, save_at=np.array([0.5]), rtol=np.float64(1e-3))
    body = bodies(service)[0]
    assert body["x0"] == x0.tolist()
    assert (body["num_samples"], body["save_at"], body["rtol"]) == (2, [0.5], 1e-3)
    assert len(result) == 2


def test_seeds_are_drawn_anew_before_sending(service: FakeService, client: Client) -> None:
    seeds = {client.sample("moons", 1).seed for _ in range(8)}
    assert len(seeds) == 8
    assert {body["seed"] for body in bodies(service)} == seeds
    assert all(int(float(seed)) == seed < 2**53 for seed in seeds)  # JavaScript and jq do not round it


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": 2**63}, ValueError, f"seed={2**63} is not allowed"),
        ({"seed": -1}, ValueError, "from 0 to"),
        ({"seed": "7"}, TypeError, "seed='7' is not allowed; use an integer"),
        ({"seed": True}, TypeError, "use an integer"),
        ({"num_samples": 2.5}, TypeError, "num_samples=2.5"),
        ({"step": 3}, TypeError, "unknown option 'step'; did you mean 'steps'"),
        ({"n": 3}, TypeError, "unknown option 'n'; did you mean 'num_samples'"),
        ({"num_sample": 3}, TypeError, "unknown option 'num_sample'; did you mean 'num_samples'"),
        ({"sampler": "rk4"}, TypeError, "unknown option 'sampler'; did you mean 'solver'"),
        ({"timeout": 3}, TypeError, "unknown option 'timeout'; did you mean 'timeout_s'"),
        ({"colour": 3}, TypeError, "unknown option 'colour'; allowed: version, "),
        ({"rtol": float("nan")}, pathline.InvalidValue, "^rtol=nan is not finite"),
        ({"x0": [[float("inf")]]}, pathline.InvalidValue, r"^x0\[0\]\[0\]=inf is not finite"),
        ({"x0": np.array([[0.0, np.nan]])}, ValueError, r"^x0\[0\]\[1\]=nan is not finite"),
        ({"x0": np.ones((1, 2), complex)}, TypeError, r"^x0\[0\]\[0\] is a complex, which cannot be sent"),
        ({"x0": np.array([[object()]])}, TypeError, r"^x0\[0\]\[0\] is a object, which cannot be sent"),
        ({"conditions": [1, 2, 3]}, TypeError, r"^conditions is a list; use a dict .* conditions=\{'text'"),
        ({"negative": np.ones(3)}, TypeError, r"^negative is a ndarray; use a dict .* negative=\{'text'"),
        ({"grid": {"name": "power", "rho": {1}}}, TypeError, r"^grid\['rho'\] is a set, which cannot be sent"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(
    service: FakeService, client: Client, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client.sample("moons", **options)
    assert service.seen == []


@pytest.mark.parametrize("name", ["conditions", "negative"])
def test_conditions_by_name_are_a_dict_in_every_call(
    service: FakeService, client: Client, name: str, tmp_path: Path
) -> None:
    options: Any = {name: [1, 2, 3]}
    calls = [
        lambda: client.stream("moons", 4, **options),
        lambda: list(client.iter_samples("moons", 8, batch=4, **options)),
        lambda: client.encode("moons", [[0.0, 0.0]], **options),
        lambda: client.log_prob("moons", [[0.0, 0.0]], **options),
        lambda: client.bulk("moons", 4, to=tmp_path / "bulk", **options),
        lambda: client.replay(ANSWER, **options),
        lambda: asyncio.run(AsyncClient("http://localhost:1").sample("moons", 4, **options)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"^{name} is a list; use a dict"):
            call()
    assert service.seen == []


def test_an_array_that_refuses_to_be_read_says_why(client: Client) -> None:
    class OnDevice:
        def __array__(self, *_: Any, **__: Any) -> None:
            raise TypeError("cannot be converted implicitly; use .get()")

    with pytest.raises(TypeError, match=r"use \.get\(\)"):
        client.sample("moons", 4, condition=OnDevice())


def test_clients_can_be_subclassed(service: FakeService) -> None:
    class Moons(Client):
        def four(self) -> pathline.SampleResult:
            return self.sample("moons", 4)

        def models(self) -> Any:
            return [info.name for info in super().models()]

    class AsyncMoons(AsyncClient):
        async def four(self) -> pathline.SampleResult:
            return await self.sample("moons", 4)

    with Moons("http://fake", transport=httpx.MockTransport(service.handle)) as client:
        assert (len(client.four()), client.models()) == (4, ["moons"])
    client = AsyncMoons("http://fake", transport=httpx.ASGITransport(service.app))
    assert len(asyncio.run(client.four())) == 4


def test_results_are_frozen_and_print_well(client: Client) -> None:
    result = client.sample("moons", 4, solver="rk4", steps=20, seed=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.seed = 3  # type: ignore[misc]
    assert repr(result) == "SampleResult(4 samples of moons v3 by rk4-20, nfe=53, status=success, seed=0)"
    assert str(result).splitlines() == [
        "moons v3, rk4-20, seed 0",
        "  samples  (4, 2) float32",
        "  nfe      53 (per sample: min 50, mean 51.5, max 53)",
        "  status   success",
        "  latency  queue 0.0 ms, solve 100.0 ms, network 90.0 ms, encode 1.0 ms, total 100.0 ms",
    ]
    assert repr(result.trace) == "Trace(2 steps of 1 samples, 1 rejected)"


def test_fallbacks_and_what_is_passed_over(client: Client, service: FakeService) -> None:
    listed = {"name": "moons", "version": 3, "fallback_from": 4, "status": "served"}
    passed_over = [{"path": "my model", "reason": "passed over: not a valid model name"}]
    body = json.dumps({"models": [listed], "passed_over": passed_over, "more_passed_over": 0}).encode()
    service.replies = [(200, {"content-type": "application/json"}, body)]
    found = client.models()
    assert [(info.version, info.fallback_from) for info in found] == [(3, 4)]
    assert found.passed_over == {"my model": "passed over: not a valid model name"}
    assert (client.models()[0].fallback_from, client.models().passed_over) == (None, {})  # of an older service
    assert client.sample("moons", num_samples=1).fallback_from is None
    service.change = lambda arrays, meta: meta.update(fallback_from=4)
    result = client.sample("moons", num_samples=1)
    assert result.fallback_from == 4
    assert "version 4 cannot be loaded; this is an older one" in str(result)


def test_models_and_solvers(client: Client) -> None:
    (listed,) = client.models()
    single = client.model("moons")
    assert listed.name == single.name == "moons"
    assert listed.version == single.version == 3
    assert listed.event_shape == single.event_shape == (2,)
    assert listed.data_shape == single.data_shape == (2,)
    assert listed["status"] == "served"
    assert {info.name: info.adaptive for info in client.solvers()} == {"euler": False, "rk4": False, "dopri5": True}
    assert client.solvers()[1].cost == "4 N"


def test_load_is_read_and_an_older_service_named(service: FakeService, client: Client) -> None:
    document = {"accepts": True, "jobs": 2, "work": 96, "seconds": 0.5, "models": []}
    kind = {"content-type": "application/json"}
    service.replies = [(200, kind, json.dumps(reply).encode()) for reply in (document, {"jobs": 2})]
    load = client.load()
    assert (load.accepts, load.jobs, load.work, load.seconds, load["models"]) == (True, 2, 96.0, 0.5, [])
    with pytest.raises(ProtocolError, match="older"):
        client.load()


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_leave_the_address_are_refused(client: Client, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a model"):
        client.model(name)


def test_names_are_quoted(service: FakeService, client: Client) -> None:
    with pytest.raises(pathline.NotFound):
        client.model("a/b?c")
    assert service.seen[0]["path"] == "/v1/models/a/b?c"  # decoded by the transport; one segment on the wire


def test_pages_are_the_samples_of_one_call(service: FakeService, client: Client) -> None:
    whole = client.sample("moons", 10, seed=9, first_index=100).samples
    paged = list(client.iter_samples("moons", 10, 4, seed=9, first_index=100))
    np.testing.assert_array_equal(np.concatenate([page.samples for page in paged]), whole)
    assert [page.first_index for page in paged] == [100, 104, 108]


def test_pages_share_a_drawn_seed_and_the_version_of_the_first(service: FakeService, client: Client) -> None:
    paged = []
    for page in client.iter_samples("moons", 6, 2):
        paged.append(page)
        service.version = 4  # the model is replaced meanwhile
    assert len({page.seed for page in paged}) == 1
    assert [page.version for page in paged] == [3, 3, 3]


@pytest.mark.parametrize(
    ("total", "options", "message"),
    [
        (0, {}, "total=0"),
        (9, {"x0": [[0.0, 0.0]]}, "x0 cannot be paged"),
        (9, {"error_control": "batch"}, "cannot be split into pages of 4; .* batch=9"),
        (9, {"seed": -1}, "seed=-1"),
    ],
)
def test_what_cannot_be_paged_is_refused_by_the_call(client: Client, total: int, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client.iter_samples("moons", total, 4, **options)


def test_many_pages_take_the_memory_of_a_few(service: FakeService, live: str) -> None:
    service.seen = type("Forgetful", (list,), {"append": lambda self, item: None})()
    with Client(live) as client:
        client.sample("moons", 4_000)  # objects that are created once are not counted
        gc.disable()  # pages must be freed when the caller drops them, not by the garbage collector
        tracemalloc.start()
        try:
            drawn = sum(len(page) for page in client.iter_samples("moons", 200_000, 4_000, seed=0))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert drawn == 200_000
    assert peak < 4_000_000  # all samples and their metadata together would exceed 10 MB


def test_the_async_client_does_the_same(client: Client, async_client: AsyncClient) -> None:
    async def run() -> tuple[Any, ...]:
        async with async_client as opened:
            pages = [page.samples async for page in opened.iter_samples("moons", 5, 2, seed=1)]
            sampled, compared = await opened.sample("moons", 5, seed=1), await opened.compare("moons", ["rk4-20"])
            return np.concatenate(pages), sampled, compared, await opened.models(), await opened.model("moons")

    pages, sampled, compared, models, model = asyncio.run(run())
    np.testing.assert_array_equal(pages, client.sample("moons", 5, seed=1).samples)
    np.testing.assert_array_equal(sampled.samples, pages)
    assert compared.rows[0].solver == "rk4-20"
    assert (models, model) == (client.models(), client.model("moons"))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://there", "http://", "", "8000"])
def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(pathline.InvalidValue, match="is not an http or https URL; use one like"):
        Client(url)


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATHLINE_URL", raising=False)
    with Client() as client:
        assert client.base_url == "http://127.0.0.1:8000"
    monkeypatch.setenv("PATHLINE_URL", "https://there/prefix/")
    with Client() as client:
        assert client.base_url == "https://there/prefix"


def test_a_prefix_and_own_headers_are_kept(service: FakeService) -> None:
    transport = httpx.MockTransport(service.handle)
    with (
        Client("http://there/prefix", headers={"Authorization": "Bearer k"}, transport=transport) as client,
        pytest.raises(pathline.NotFound),
    ):
        client.models()
    assert service.seen[0]["path"] == "/prefix/v1/models"
    assert service.seen[0]["headers"]["authorization"] == "Bearer k"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_key_is_sent(kind: Any, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_API_KEY", "from-environment ")

    def sent(**options: Any) -> str | None:
        if kind is Client:
            Client("http://there", transport=httpx.MockTransport(service.handle), **options).models()
        else:
            asyncio.run(AsyncClient("http://there", transport=httpx.ASGITransport(service.app), **options).models())
        return service.seen[-1]["headers"].get("authorization")

    assert sent() == "Bearer from-environment"
    assert sent(api_key="given") == "Bearer given"
    assert sent(api_key="") is None
    assert sent(headers={"Authorization": "Basic x"}) == "Basic x"


@pytest.mark.parametrize("key", ["zwei Wörter", "a b", "line\nbreak", "tab\there"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(pathline.InvalidValue, match="visible ASCII") as caught:
        Client("http://there", api_key=key)
    assert key not in str(caught.value)
    with pytest.raises(TypeError, match="api_key is a bytes; use a string"):
        Client("http://there", api_key=b"k")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_out_of_range_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="is not allowed; use seconds above 0"):
        Client("http://there", timeout=timeout)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_url_that_cannot_work_is_refused_at_construction(kind: Any) -> None:
    with pytest.raises(TypeError, match="base_url=3 is not allowed; use a string like"):
        kind(3)
    with pytest.raises(pathline.InvalidValue, match="has the port 99999; use one from 1 to 65535"):
        kind("http://127.0.0.1:99999")


def test_the_error_for_a_value_names_its_field(client: Client) -> None:
    with pytest.raises(pathline.InvalidValue) as caught:
        client.sample("moons", save_at=[0.5, float("nan")])
    assert caught.value.field == "save_at"


def test_the_text_of_a_solver_is_sent_as_typed_and_read_from_the_response(service: FakeService, client: Client) -> None:
    text = " RK4-3/(0, 0.2, 0.6, 1)".strip()
    assert client.sample("moons", 2, solver=text, seed=1).solver_text == text.lower()
    list(client.iter_samples("moons", 2, solver="rk4-9", seed=1))
    client.sample("moons", 2, solver="rk4-9", seed=1, progress=lambda _: None)
    for ask in (client.encode, client.log_prob):
        with pytest.raises(pathline.NotFound):
            ask("moons", [[0.0, 0.0]], solver="rk4-9")
    with pytest.raises(pathline.NotFound):
        client.diagnose("moons", solver="rk4-9")
    sent = [json.loads(seen["body"]) for seen in service.seen]
    assert [body["solver"] for body in sent] == [text, *["rk4-9"] * 5]


def test_samples_that_share_their_steps_are_not_paged(service: FakeService, client: Client) -> None:
    with pytest.raises(ValueError, match="error_control='batch' couples all samples"):
        client.iter_samples("moons", 9, 4, error_control="batch")
    pages = client.iter_samples("moons", 9, 4, solver="dopri5+batch")
    with pytest.raises(ValueError, match="error_control='batch' couples all samples"):  # as the first response says
        next(pages)


def test_signatures_show_every_option() -> None:
    for kind in (Client, AsyncClient):
        assert {"solver", "steps", "seed", "save_at", "progress"} <= set(inspect.signature(kind.sample).parameters)
        assert {"times", "x0", "rtol"} <= set(inspect.signature(kind.diagnose).parameters)


@pytest.mark.parametrize("name", [name for name in vars(Client) if not name.startswith("_")])
def test_both_clients_take_the_same(name: str) -> None:
    if name != "close":
        blocking, other = (getattr(kind, name) for kind in (Client, AsyncClient))
        if callable(blocking):
            assert inspect.signature(blocking).parameters == inspect.signature(other).parameters


@pytest.mark.parametrize(
    "described",
    [{"sampling": {"solver": "euler-4"}}, {"served": [{"version": 1, "card": {"sampling": {"solver": "euler-4"}}}]}],
)
def test_the_solver_of_a_model_that_has_its_own(described: dict[str, Any]) -> None:
    assert model_of({"name": "m", "version": 1, **described}).solver == "euler-4"
    assert model_of({"name": "m", "version": 1, "sampling": None}).solver is None


def test_what_requests_give_is_told_of_a_model() -> None:
    conditions = {"text": {"dtype": "float32", "shape": ["L", 4]}}
    listed = model_of({"name": "m", "version": 1, "conditions": conditions})
    described = model_of({"name": "m", "serving": 1, "served": [{"version": 1, "conditions": conditions, "card": {}}]})
    assert listed.conditions == described.conditions == conditions
    assert model_of({"name": "m", "version": 1}).conditions == {}


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_timeout_is_one_that_sockets_take(timeout: float) -> None:
    with pytest.raises(ValueError, match="use seconds above 0, at most 1,000,000"):
        Client("http://there", timeout=timeout)


def test_names_and_versions_of_other_types_are_refused_by_name(client: Client, service: FakeService) -> None:
    for call in (client.model, client.frontier, client.sample, client.diagnose, client.compare):
        with pytest.raises(TypeError, match="model=3 is not allowed; use the name of a model"):
            call(3)  # type: ignore[arg-type]  (that is the point)
    with pytest.raises(TypeError, match="version='3'"):
        client.frontier("moons", "3")  # type: ignore[arg-type]  (that is the point)
    with pytest.raises(pathline.InvalidValue, match="/nowhere"):
        client.replay("/nowhere")
    assert not service.seen


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_help_shows_the_methods_and_their_options(kind: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(kind))
    assert re.search(r"^ \|  (async )?sample\(.*, seed=None,", shown, re.MULTILINE)
    assert "Draw `total` samples of one seed, page by page" in shown
