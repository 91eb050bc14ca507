"""Bodies that are too large are refused before they are read."""

import io
import json
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from service.analysis.diagnose import DiagnoseRequest
from service.analysis.encode import EncodeRequest
from service.analysis.log_prob import LogProbRequest
from service.errors import ClientGoneError, ProblemError
from service.http.context import Context
from service.ledger import Ledger
from service.requests.parsing import LARGE_BODY, parse, read_body
from service.requests.schemas import SampleRequest
from service.routes.replay import ReplayRequest

pytestmark = pytest.mark.anyio

JSON = (b"content-type", b"application/json; charset=utf-8")


def _request(
    *parts: bytes, headers: tuple[tuple[bytes, bytes], ...] = (), cut: bool = False
) -> tuple[Context, list[Any]]:
    """Return a request with a body that arrives in parts; the list has those not read yet."""
    left: list[Any] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    left[-1]["more_body"] = cut
    left.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return left.pop(0)

    return Context({"type": "http", "method": "POST", "headers": [JSON, *headers]}, receive), left


async def test_parts_are_joined() -> None:
    request, _ = _request(b'{"model"', b': "m', b'oons"}')
    assert await read_body(request, 100, Ledger(10**6)) == b'{"model": "moons"}'


async def test_stated_length_is_refused_unread() -> None:
    request, left = _request(b"x" * 50, headers=((b"content-length", b"50"),))
    with pytest.raises(ProblemError, match="50 bytes, the limit is 49") as caught:
        await read_body(request, 49, Ledger(10**6))
    assert caught.value.kind.status == 413
    assert caught.value.headers == {"Connection": "close"}
    assert len(left) == 2


async def test_unstated_length_is_refused_on_the_way() -> None:
    request, left = _request(*[b"x" * 10] * 20)
    with pytest.raises(ProblemError, match="more than 25 bytes"):
        await read_body(request, 25, Ledger(10**6))
    assert len(left) == 18


async def test_body_of_exactly_the_limit() -> None:
    request, _ = _request(b"x" * 25, headers=((b"content-length", b"25"),))
    assert len(await read_body(request, 25, Ledger(10**6))) == 25


@pytest.mark.parametrize("length", [b"abc", b"-1", b"1e3"])
async def test_nonsensical_length(length: bytes) -> None:
    request, _ = _request(b"{}", headers=((b"content-length", length),))
    with pytest.raises(ProblemError) as caught:
        await read_body(request, 100, Ledger(10**6))
    assert caught.value.kind.status == 400


async def test_client_leaves_half_way() -> None:
    request, _ = _request(b'{"model"', cut=True)
    with pytest.raises(ClientGoneError):
        await read_body(request, 100, Ledger(10**6))


async def test_large_bodies_are_counted_while_they_come() -> None:
    ledger = Ledger(3 * LARGE_BODY)
    first, _ = _request(b"x" * LARGE_BODY, b"x" * LARGE_BODY)
    second, left = _request(b"x" * LARGE_BODY, b"x", b"x" * LARGE_BODY, b"x")
    small, _ = _request(b"x" * LARGE_BODY)
    await read_body(first, 10**6, ledger)
    assert ledger.reserved == 2 * LARGE_BODY
    with pytest.raises(ProblemError, match="PATHLINE_MAX_JOB_BYTES") as caught:
        await read_body(second, 10**6, ledger)
    assert (caught.value.kind.status, caught.value.unread) == (429, True)
    assert caught.value.headers["Connection"] == "close"
    assert len(left) == 3  # refused at its second part
    assert len(await read_body(small, 10**6, ledger)) == LARGE_BODY  # not counted
    first.drop_body()
    second.end()
    assert ledger.reserved == 0


async def test_a_body_larger_than_all_there_is() -> None:
    ledger = Ledger(LARGE_BODY)
    request, _ = _request(b"x" * LARGE_BODY, b"x")
    with pytest.raises(ProblemError) as caught:
        await read_body(request, 10**6, ledger)
    assert caught.value.kind.status == 413
    assert ledger.reserved == 0


async def test_limit_over_http(running: Any) -> None:
    object.__setattr__(running.service, "settings", running.service.settings.model_copy(update={"max_body_bytes": 64}))
    headers = {"Content-Type": "application/json"}

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 10

    for content in (b" " * 65, chunks()):
        answer = await running.http.post("/v1/sample", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["limit"] == 64
        assert "PATHLINE_MAX_BODY_BYTES" in answer.json()["detail"]


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ProblemError) as caught:
        parse(SampleRequest, b'{"model": "moons", "seed": "' + b"7" * 10_000 + b'"}')
    assert len(caught.value.detail) < 200


def test_whole_objects_are_not_repeated_in_messages() -> None:
    with pytest.raises(ProblemError, match=r"rtol = a list of 1000 is not allowed"):
        parse(SampleRequest, b'{"model": "moons", "rtol": [' + b"1," * 999 + b"1]}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"n": 3}, "unknown field 'n'; did you mean 'num_samples'?"),
        ({"N_Samples": 3}, "did you mean 'num_samples'?"),
        ({"sampler": "rk4"}, "unknown field 'sampler'; did you mean 'solver'?"),
        ({"num_inference_steps": 3}, "did you mean 'steps'?"),
        ({"sedd": 3}, "did you mean 'seed'?"),
        ({"sampels": 3}, "unknown field 'sampels'; did you mean 'num_samples'?"),
        ({"budget": {"max_err": 1}}, "unknown field 'budget.max_err'; did you mean 'max_error'?"),
        ({"budget": {"colour": 1}}, "unknown field 'budget.colour'; allowed: max_error, max_nfe, max_ms"),
        ({"guidance": {"strenght": 1}}, "did you mean 'strength'?"),
        ({"guidance": {"terms": [{"wieght": 1}]}}, "did you mean 'weight'?"),
        ({"colour": 3}, "allowed: model, version, num_samples"),
    ],
)
def test_a_field_by_another_name_is_recognised(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ProblemError) as caught:
        parse(SampleRequest, json.dumps({"model": "moons", **body}).encode())
    assert words in caught.value.detail


def test_what_is_a_field_here_is_suggested() -> None:
    with pytest.raises(ProblemError, match="unknown field 'n'; allowed: samples, decode"):
        parse(EncodeRequest, b'{"samples": [[1, 2]], "n": 1}')
    with pytest.raises(ProblemError, match=r"unknown field 'data'; did you mean 'samples'\?"):
        parse(EncodeRequest, b'{"data": [[1, 2]]}')


def test_the_title_names_the_fields() -> None:
    def title(body: str) -> str:
        with pytest.raises(ProblemError) as caught:
            parse(SampleRequest, body.encode())
        return caught.value.body("r")["title"]

    assert title('{"model": "moons", "steps": 0}') == "Invalid field: steps"
    assert title('{"model": 1, "steps": 0}') == "Invalid fields: model, steps"
    assert title('{"a": 1, "b": 2, "c": 3}') == "Invalid fields: model, a, b ..."
    assert title("[]") == "A field of the request is not allowed"


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse(SampleRequest, '\ufeff{"model": "moons"}'.encode()).model == "moons"
    for twice in ("\ufeff\ufeff{}", "{\ufeff}"):
        with pytest.raises(ProblemError, match=r"is not valid JSON: (expected value|key must be)"):
            parse(SampleRequest, twice.encode())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_other_encodings_are_named(encoding: str) -> None:
    with pytest.raises(ProblemError, match="it looks like UTF-16 or UTF-32; send UTF-8") as caught:
        parse(SampleRequest, '{"model": "moons"}'.encode(encoding))
    assert caught.value.kind.status == 400


@pytest.mark.parametrize(
    "path", ["/v1/sample", "/v1/sample/stream", "/v2/models/moons/infer", "/v1/models/moons/encode"]
)
async def test_every_door_reads_a_body_with_a_mark(running: Any, path: str) -> None:
    body = {
        "/v2/models/moons/infer": '{"parameters": {"num_samples": 1}}',
        "/v1/models/moons/encode": '{"samples": [[0.5, 0.5]]}',
    }.get(path, '{"model": "moons", "num_samples": 1}')
    for mark in ("", "\ufeff"):
        answer = await running.http.post(
            path, content=f"{mark}{body}".encode(), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("body", [SampleRequest, EncodeRequest, LogProbRequest, DiagnoseRequest, ReplayRequest])
def test_every_integer_has_an_upper_bound(body: type[BaseModel]) -> None:
    unbounded = []

    def search(place: str, schema: Any) -> None:
        if isinstance(schema, dict):
            if schema.get("type") == "integer" and not {"maximum", "exclusiveMaximum"} & schema.keys():
                unbounded.append(place)
            for name, part in schema.items():
                search(f"{place}.{name}", part)
        elif isinstance(schema, list):
            for part in schema:
                search(place, part)

    search("", body.model_json_schema())
    # sizes of axes: the bounds are the model's
    assert [place for place in unbounded if ".shape." not in place] == []


@pytest.mark.parametrize("value", [[], "", 3])
def test_an_object_is_asked_for_in_the_words_of_json(value: Any) -> None:
    with pytest.raises(ProblemError) as caught:
        parse(SampleRequest, json.dumps({"model": "moons", "budget": value}).encode())
    assert caught.value.detail.endswith("is not allowed: it must be a JSON object")
    assert "BudgetBody" not in caught.value.detail


def test_an_empty_body_is_named_as_such() -> None:
    with pytest.raises(ProblemError, match=r"^the body is empty; send a JSON object$"):
        parse(SampleRequest, b"")


def _npz(entry: bytes, name: str = "request.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, entry)
    return file.getvalue()


def _header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"", "it does not begin like a file of np.save"),
        (b"GIF89a and more", "it does not begin like a file of np.save"),
        (_header("x" * 60_000), "its header is damaged or longer than 4,096 bytes"),
        (_header("{'descr': open('/etc/passwd'), 'fortran_order': False, 'shape': ()}\n"), "its header is damaged"),
        (_header("{'descr': '<f4', 'fortran_order': False, 'shape': f()}\n"), "its header is damaged"),
    ],
)
def test_an_entry_that_is_not_npy_is_described_in_our_words(entry: bytes, reason: str) -> None:
    with pytest.raises(ProblemError) as caught:
        parse(SampleRequest, _npz(entry))
    assert caught.value.detail.startswith(f"the npz entry 'request' is not in the npy format: {reason}")
    assert not any(word in caught.value.detail for word in ("0x", "allow_pickle", "max_header_size"))


def test_the_json_of_an_npz_body_is_named() -> None:
    for text, words in ((b"", "is empty"), (b"{", "is not valid JSON"), (b"[]", "must be a JSON object")):
        with pytest.raises(ProblemError, match=f"^the entry 'request' of the npz body {words}"):
            parse(SampleRequest, _npz(text, "request.json"))


def test_a_truncated_npz_body_is_not_called_json() -> None:
    with pytest.raises(ProblemError, match="not a valid npz archive") as caught:
        parse(SampleRequest, _npz(b"{}", "request.json")[:40])
    assert caught.value.title == "The body cannot be parsed"
