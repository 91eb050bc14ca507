from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pathline
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pathline import Client, SampleResult
from pathline._decode import decode_npz
from pathline._request import Request, sample_request

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService

LAST_SEED = 2**63 - 1


def answer(service: FakeService, **options: Any) -> tuple[bytes, Request]:
    request = sample_request("moons", 5, {**options, "seed": LAST_SEED})
    return service.answer("POST", "/v1/sample", {}, request.body)[2], request


def decoded(service: FakeService) -> SampleResult:
    return decode_npz(*answer(service))


def test_everything_arrives_exactly(service: FakeService) -> None:
    result = decoded(service)
    assert result.seed == LAST_SEED
    assert result.samples.dtype == np.float32
    np.testing.assert_array_equal(result.samples[:, 0], np.arange(5))
    np.testing.assert_array_equal(result.nfe_per_sample, 50 + np.arange(5))
    assert result.nfe_per_sample.dtype == np.int64
    assert (result.nfe, result.status, result.failed, result.ok) == (54, "success", (), True)
    assert (result.model, result.version, result.checkpoint) == ("moons", 3, "sha256:00")
    assert result.latency.network_s == 0.09
    assert result.extra == {"noise": "philox-ndtri-v1"}
    assert len(result.trace) == 2
    np.testing.assert_array_equal(result.trace.accepted, [True, False])
    assert result.samples.flags.writeable


def test_failures_saved_states_and_quantiles(service: FakeService) -> None:
    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        arrays["status"] = np.array(["success", "max_nfe", "success", "success", "success"])
        arrays["saved"] = np.zeros((5, 2, 2))
        meta |= {"status": "max_nfe", "failed": [{"index": 1, "status": "max_nfe", "t": 0.5}]}
        meta |= {"saved": {"t": [0.0, 0.5]}, "trace": {"quantiles": {"t": [0.1], "q50": [None]}}}

    service.change = change
    result = decoded(service)
    assert not result.ok
    assert result.failed == (pathline.Failure(1, "max_nfe", 0.5),)
    assert result.status_per_sample[1] == "max_nfe"
    assert result.saved is not None
    assert result.saved.shape == (5, 2, 2)
    np.testing.assert_array_equal(result.saved_t, [0.0, 0.5])
    assert np.isnan(result.trace.quantiles["q50"]).all()
    assert "max_nfe (1 of 5 failed)" in str(result)


def test_an_empty_trace_and_other_memory_layouts(service: FakeService) -> None:
    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        arrays["samples"] = np.asfortranarray(np.arange(30.0).reshape(5, 2, 3))
        arrays.update({f"trace_{name}": np.zeros(0) for name in ("sample", "t", "h", "error", "accepted")})

    service.change = change
    result = decoded(service)
    np.testing.assert_array_equal(result.samples, np.arange(30.0).reshape(5, 2, 3))
    assert (len(result.trace), result.trace.sample.dtype, result.trace.accepted.dtype) == (0, np.int64, np.bool_)


def drop(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: (arrays if name in arrays else meta).pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("samples"), "there is no 'samples'"),
        (drop("seed"), "no 'seed'"),
        (drop("checkpoint"), "no 'checkpoint'"),
        (lambda arrays, meta: meta.update(seed=7), f"for seed=7, but seed={LAST_SEED} was requested"),
        (lambda arrays, meta: meta.update(first_index=9), "first_index=9"),
        (lambda arrays, meta: meta.update(model="circles"), "model='circles'"),
        (lambda arrays, meta: arrays.update(samples=np.zeros((4, 2))), "5 samples were requested"),
        (lambda arrays, meta: arrays.update(nfe=np.zeros(())), r"nfe has shape \(\)"),
        (lambda arrays, meta: arrays.update(trace_h=np.zeros(7)), "columns of different length"),
        (lambda arrays, meta: arrays.update(samples=np.array([None] * 5)), "not a plain array"),
        (lambda arrays, meta: meta.update(latency=3), "latency = '3' is no Mapping"),
    ],
)
def test_what_was_not_promised_is_refused(
    service: FakeService, change: Callable[[dict[str, Any], dict[str, Any]], None], message: str
) -> None:
    service.change = change
    with pytest.raises(pathline.ProtocolError, match=message):
        decoded(service)


def test_nothing_is_unpickled_even_when_sizes_fit(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("pickle was loaded")

    monkeypatch.setattr("pickle.load", refuse)
    service.change = lambda arrays, meta: arrays.update(nfe=np.array([{"a": 1}] * 5, dtype=object))
    with pytest.raises(pathline.ProtocolError, match="not a plain array"):
        decoded(service)


def test_a_header_that_promises_too_much_allocates_nothing(service: FakeService) -> None:
    content, request = answer(service)
    lie = io.BytesIO()
    layout = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(lie, layout)
    with zipfile.ZipFile(io.BytesIO(content)) as source, io.BytesIO() as forged:
        with zipfile.ZipFile(forged, "w") as target:
            for info in source.infolist():
                target.writestr(info.filename, lie.getvalue() if info.filename == "t.npy" else source.read(info))
        with pytest.raises(pathline.ProtocolError, match="not a plain array"):
            decode_npz(forged.getvalue(), request)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_is_noticed_or_harmless(service: FakeService, data: st.DataObject) -> None:
    content, request = answer(service)
    damaged = bytearray(content)
    place = data.draw(st.integers(0, len(content) - 1))
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        result = decode_npz(bytes(damaged), request)
    except pathline.ProtocolError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
    else:
        np.testing.assert_array_equal(result.samples, decode_npz(content, request).samples)


@pytest.mark.parametrize("keep", [0, 1, 100, -30, -1])
def test_a_cut_archive_is_refused(service: FakeService, keep: int) -> None:
    content, request = answer(service)
    with pytest.raises(pathline.ProtocolError, match="is not understood"):
        decode_npz(content[:keep], request)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((200, {"content-type": "text/html"}, b"<html>"), "answered with text/html instead of application/x-npz"),
        ((200, {"content-type": "application/json"}, b"{}"), "not an older one"),
        ((200, {}, b""), "no stated type"),
        ((204, {}, b""), "no stated type"),
        ((301, {"location": "https://there/"}, b""), "it moved to https://there; use that"),
    ],
)
def test_other_servers_are_recognised(service: FakeService, client: Client, reply: Any, message: str) -> None:
    service.replies = [reply]
    with pytest.raises(pathline.ProtocolError, match=message):
        client.sample("moons")


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"models": [{}]}', b'{"models": 7}'])
def test_lists_that_are_none_are_refused(service: FakeService, client: Client, body: bytes) -> None:
    service.replies = [(200, {"content-type": "application/json"}, body)]
    with pytest.raises(pathline.ProtocolError):
        client.models()


def test_meta_is_utf8_json(service: FakeService) -> None:
    service.change = lambda arrays, meta: meta.update(note="größer")
    assert decoded(service).extra["note"] == json.loads('"größer"')
