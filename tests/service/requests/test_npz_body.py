"""Bodies in npz: sizes as claimed, limits before anything is made of an array, and no archive that is a 500."""

import io
import json
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

from service.analysis.diagnose import DiagnoseRequest, validate_diagnose
from service.analysis.encode import EncodeRequest, validate_encode
from service.analysis.log_prob import LogProbRequest, validate_log_prob
from service.errors import Kind, ProblemError
from service.ledger import Hold
from service.registry.version import ModelVersion
from service.requests import validation
from service.requests.npz_body import claimed_bytes
from service.requests.parsing import LARGE_BODY, parse
from service.requests.schemas import SampleRequest
from service.requests.validation import validate_sample
from service.responses.arrays import ENCODERS
from service.settings import Settings
from tests.service.conftest import asking

pytestmark = pytest.mark.anyio

NPZ = {"Content-Type": "application/x-npz"}
JSON = ENCODERS["application/json"]
BODIES: dict[str, Any] = {
    "/v1/sample": {"model": "moons", "num_samples": 1},
    "/v1/sample/stream": {"model": "moons", "num_samples": 1},
    "/v1/models/moons/encode": {"samples": [[0.5, 0.5]]},
    "/v1/models/moons/log_prob": {"samples": [[0.5, 0.5]]},
    "/v1/models/moons/diagnose": {"num_samples": 1},
}
"""Doors that take npz, each with a body that is good."""


def packed(body: dict[str, Any], save: Callable[..., Any] = np.savez, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, request=np.array(json.dumps(body)), **arrays)
    return file.getvalue()


def entry(header: str, content: bytes = b"") -> bytes:
    """Return an npy file with a header that says anything."""
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


def archive(method: int = zipfile.ZIP_STORED, **entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as target:
        for name, content in {"request": json.dumps(BODIES["/v1/sample"]).encode(), **entries}.items():
            target.writestr(f"{name}.{'json' if name == 'request' else 'npy'}", content)
    return file.getvalue()


def refuse(wanted: int, deadline: float, conditions: int) -> Hold:
    raise ProblemError(Kind.OVERLOADED, "nothing is free")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("place", ["save_at", "grid", "t_span", "times"])
async def test_times_are_limited_before_they_are_lists(shared: Any, path: str, place: str) -> None:
    content = packed(BODIES[path], np.savez_compressed, **{place: np.zeros(1_000_000, np.int8)})
    assert len(content) < 3_000
    tracemalloc.start()
    answer = await shared.http.post(path, content=content, headers=NPZ)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == 422, answer.text
    assert place in answer.json()["detail"]
    assert taken < 6_000_000  # the entry and its array; as floats they would take 40 MB
    assert shared.service.bodies.reserved == 0


async def test_the_claimed_size_is_limited_and_reserved(shared: Any) -> None:
    large = packed(BODIES["/v1/sample"], np.savez_compressed, x0=np.zeros((17 << 20, 1), np.int8))
    answer = await shared.http.post("/v1/sample", content=large, headers=NPZ)
    assert (answer.status_code, answer.json()["limit"]) == (413, shared.service.settings.max_body_bytes)
    held: list[int] = []
    end = shared.service.bodies.end
    shared.service.bodies.end = lambda hold: (held.append(shared.service.bodies.reserved), end(hold))
    x0 = np.zeros((100_000, 2), np.float32)
    body = packed({"model": "moons"}, np.savez_compressed, x0=x0)
    assert len(body) < LARGE_BODY
    answer = await shared.http.post("/v1/sample", content=body, headers=NPZ)
    assert answer.status_code == 422  # num_samples is 256
    assert held
    assert held[0] >= x0.nbytes


def test_more_entries_than_any_request_has() -> None:
    with pytest.raises(ProblemError, match="the limit is 256") as caught:
        claimed_bytes(archive(**{f"e{k}": b"" for k in range(400)}), 1 << 20)  # type: ignore[arg-type]
    assert caught.value.kind is Kind.TOO_LARGE


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 2)), "must have one dimension"),
        (np.float64(0.5), "must have one dimension"),
        (np.array([True, False]), "holds booleans; it must hold numbers"),
        (np.array([0.0, np.nan]), "not finite"),
        (np.array([0, 2**63], np.uint64), "holds 9223372036854775808; integers must be below 2**63"),
        (np.array([0, 1], np.longdouble), "numbers of up to 64 bits"),
        (np.array([0, 1], np.complex64), "numbers of up to 64 bits"),
        (np.array(["2020-01-01"], "datetime64[D]"), "numbers of up to 64 bits"),
        (np.array([(1, 2)], [("a", "<i4"), ("b", "<i4")]), "numbers of up to 64 bits"),
    ],
    ids=lambda value: getattr(value, "dtype", None) and str(value.dtype),
)
def test_times_are_a_list_of_numbers(array: Any, words: str) -> None:
    with pytest.raises(ProblemError) as caught:
        parse(SampleRequest, packed({"model": "moons"}, save_at=array))
    assert caught.value.kind is Kind.INVALID
    assert words in caught.value.detail


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_span_has_two_ends(size: int) -> None:
    with pytest.raises(ProblemError, match="t_span") as caught:
        parse(SampleRequest, packed({"model": "moons"}, t_span=np.zeros(size)))
    assert caught.value.kind is Kind.INVALID


async def test_times_keep_the_rounding_of_their_dtype(shared: Any) -> None:
    body = {"model": "moons", "num_samples": 1, "solver": "euler-10"}
    times = np.array([0.1, 0.3, 1], np.float16)
    answer = await shared.http.post("/v1/sample", content=packed(body, save_at=times), headers=NPZ)
    assert answer.json()["saved"]["t"] == [0.1, 0.3, 1.0]


@pytest.mark.parametrize("name", ["x0", "condition", "conditions.label"])
async def test_unsigned_integers_do_not_wrap(shared: Any, name: str) -> None:
    content = packed(BODIES["/v1/sample"], **{name: np.array([2**64 - 1], np.uint64)})  # type: ignore[arg-type]
    answer = await shared.http.post("/v1/sample", content=content, headers=NPZ)
    assert (answer.status_code, "integers must be below 2**63" in answer.text) == (422, True)


@pytest.mark.parametrize("name", ["x0", "condition"])
def test_states_and_conditions_are_no_booleans(name: str) -> None:
    with pytest.raises(ProblemError, match="holds booleans"):
        parse(SampleRequest, packed({"model": "moons"}, **{name: np.array([[True, False]])}))  # type: ignore[arg-type]


def test_a_name_that_zip_cuts_is_refused() -> None:
    content = archive(x0_junk=entry("{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }"))
    with pytest.raises(ProblemError, match="a character in its name"):
        parse(SampleRequest, content.replace(b"x0_junk", b"x0\0junk"))


MALFORMED = {
    "negative size": entry("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2), }", b"\0" * 8),
    "sizes beyond memory": entry("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 2**62, 2**62), }"),
    "sizes of a thousand digits": entry(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1{'0' * 3000},), }}"),
    "empty and large": entry("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 9), }"),
    "no number as size": entry("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2), }", b"\0" * 8),
    "sizes beyond integers": entry(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10**21, 0), }".replace("10**21", "1" + "0" * 21)
    ),
    "array of arrays": entry("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (1,), }", b"\0" * 8),
    "numbers of no bytes": entry("{'descr': '|V0', 'fortran_order': False, 'shape': (3,), }"),
    "text of no bytes": entry("{'descr': '<U0', 'fortran_order': False, 'shape': (), }"),
    "seventy axes": entry(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1, ' * 70}), }}", b"\0" * 4),
    "objects": entry("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"\0" * 8),
    "extended precision": entry("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", b"\0" * 16),
    "no npy": b"GIF89a",
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_malformed_entry_is_the_fault_of_its_sender(shared: Any, path: str) -> None:
    for name, content in product(("x0", "samples", "save_at", "conditions.a", "request"), MALFORMED.values()):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as target:
            if name != "request":
                target.writestr("request.json", json.dumps(BODIES[path]))
            target.writestr(f"{name}.npy", content)
        answer = await shared.http.post(path, content=file.getvalue(), headers=NPZ)
        assert answer.status_code == 422, (name, content, answer.text)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_numpy_never_writes(method: int) -> None:
    with pytest.raises(ProblemError) as caught:
        parse(SampleRequest, archive(method))
    assert caught.value.kind is Kind.MALFORMED


def seeds() -> list[bytes]:
    """Archives to change: stored and compressed, arrays of several kinds, both versions of the header."""
    arrays = {"x0": np.zeros((3, 2), np.float32), "save_at": np.array([0.5, 1]), "t_span": np.array([0, 1])}
    second = io.BytesIO()
    npy.write_array(second, np.arange(4.0), version=(2, 0))
    body = {"model": "moons", "num_samples": 3}
    return [packed(body, **arrays), packed(body, np.savez_compressed, **arrays), archive(grid=second.getvalue())]


def changed(body: bytes, draw: random.Random) -> bytes:
    """Return an archive with some bytes changed, a part cut out or a part given twice."""
    content, kind = bytearray(body), draw.random()
    if kind < 0.7:
        for _ in range(draw.choice([1, 1, 2, 4, 16])):
            content[draw.randrange(len(content))] = draw.choice([0, 1, 9, 14, 127, 255, draw.randrange(256)])
        return bytes(content)
    begin = draw.randrange(len(content))
    end = min(len(content), begin + draw.choice([1, 4, 40, 400]))
    if kind < 0.9:
        return bytes(content[:begin] + content[end:])
    return bytes(content[:end] + content[begin:])


def test_no_archive_is_a_fault_of_the_service(moons: ModelVersion, settings: Settings) -> None:
    draw, bodies = random.Random(0), seeds()
    statuses: dict[int, int] = {}
    for k in range(5_000):
        body = changed(bodies[k % len(bodies)], draw)
        try:
            request = parse(SampleRequest, body)
            validate_sample(request, moons, settings, JSON, asking())
            status = 200
        except ProblemError as problem:
            status = problem.kind.status
        statuses[status] = statuses.get(status, 0) + 1
    assert set(statuses) == {200, 400, 422}
    assert min(statuses.values()) > 100


def test_nothing_is_made_of_x0_before_its_memory_is_reserved(
    moons: ModelVersion, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    made = validation.to_array
    for module in ("requests.validation", "analysis.data"):
        monkeypatch.setattr(
            f"service.{module}.to_array",
            lambda value, *rest: (reached.append("made"), made(value, *rest))[1],
        )
    rows = [[0.5, 0.5]] * 4
    for http, refuses in ((asking(refuse), True), (asking(), False)):
        requests = (
            (validate_sample, SampleRequest(model="moons", num_samples=4, x0=rows)),
            (validate_diagnose, DiagnoseRequest(num_samples=4, x0=rows)),
            (validate_encode, EncodeRequest(samples=rows)),
            (validate_log_prob, LogProbRequest(samples=rows)),
        )
        for validate, request in requests:
            with pytest.raises(ProblemError, match="nothing is free") if refuses else nullcontext():
                validate(request, moons, settings, JSON, http)  # type: ignore[operator]
        assert len(reached) == (0 if refuses else len(requests))
