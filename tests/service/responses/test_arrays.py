"""Formats: pieces of bounded size, no non-finite numbers in JSON, and no more bytes than predicted."""

import io
from typing import Any

import numpy as np
import orjson
import pytest

from service.responses.arrays import ENCODERS, ArrayResponse, digest_of
from service.responses.samples import COLUMNS, TraceBody

RNG = np.random.default_rng(0)


def _answer(
    samples: np.ndarray[Any, Any], saved: np.ndarray[Any, Any] | None = None, trace: TraceBody | None = None
) -> ArrayResponse:
    n = len(samples)
    document: dict[str, Any] = {"model": "m", "seed": 2**63 - 1, "samples": samples}
    arrays = {"samples": samples, "nfe": np.full(n, 80), "t": np.ones(n), "status": np.array(["success"] * n)}
    if saved is not None:
        document["saved"] = {"t": [0.5] * saved.shape[1], "states": saved}
        arrays["saved"] = saved
    if trace is not None:
        document["trace"] = trace
        arrays |= {f"trace_{name}": trace[name] for name in COLUMNS}
    document["latency"] = {"queue_s": 0.0, "encode_s": 0.0, "total_s": 0.0}
    return ArrayResponse(document, arrays, elapsed=lambda: 0.5)


def _encode(answer: ArrayResponse, name: str) -> bytes:
    return b"".join(ENCODERS[f"application/{name}"].encode(answer))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 2), (3, 1), (7, 4, 4), (40_000, 2), (3, 40_000)])
def test_json_is_exact(dtype: type, shape: tuple[int, ...]) -> None:
    samples = RNG.standard_normal(shape).astype(dtype)
    body = orjson.loads(_encode(_answer(samples), "json"))
    np.testing.assert_array_equal(np.array(body["samples"], dtype=dtype), samples)
    assert body["seed"] == 2**63 - 1
    assert list(body) == ["model", "seed", "samples", "latency"]
    assert body["latency"]["total_s"] == 0.5
    assert 0 <= body["latency"]["encode_s"] < 10


def test_json_pieces_are_bounded() -> None:
    answer = _answer(RNG.standard_normal((100_000, 2)))
    pieces = list(ENCODERS["application/json"].encode(answer))
    assert max(len(piece) for piece in pieces) <= 32_000 * 27
    assert len(pieces) < 20


def test_json_of_many_saved_states_has_few_pieces() -> None:
    saved = RNG.standard_normal((10_000, 4, 2)).astype(np.float32)
    answer = _answer(saved[:, 0], saved=saved)
    pieces = list(ENCODERS["application/json"].encode(answer))
    body = orjson.loads(b"".join(pieces))
    assert len(pieces) < 30
    assert body["saved"]["t"] == [0.5] * 4
    np.testing.assert_array_equal(np.array(body["saved"]["states"], dtype=np.float32), saved)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_reaches_json(bad: float) -> None:
    samples = np.ones((3, 2, 2))
    samples[1, 0, 0] = bad
    saved = np.ones((3, 2, 2, 2))
    saved[2, 1] = bad
    trace: TraceBody = {
        "sample": np.zeros(2, dtype=np.int64),
        "t": np.array([0.0, 0.5]),
        "h": np.array([0.5, 0.5]),
        "error": np.array([bad, 0.1]),
        "accepted": np.array([False, True]),
        "quantiles": {"q50": [bad, 1.0]},
    }
    body = orjson.loads(_encode(_answer(samples, saved=saved, trace=trace), "json"))
    one = [[1.0, 1.0], [1.0, 1.0]]
    assert body["samples"] == [one, None, one]
    assert body["saved"]["states"] == [[one, one], [one, one], [one, None]]
    assert body["trace"]["error"] == [None, 0.1]
    assert body["trace"]["accepted"] == [False, True]
    assert body["trace"]["quantiles"] == {"q50": [None, 1.0]}


def test_npz_keeps_what_is_not_finite() -> None:
    samples = np.array([[np.nan, np.nan], [1.0, 2.0]], dtype=np.float32)
    archive = np.load(io.BytesIO(_encode(_answer(samples), "x-npz")), allow_pickle=False)
    np.testing.assert_array_equal(archive["samples"], samples)
    assert archive["samples"].dtype == np.float32
    assert set(archive.files) == {"samples", "nfe", "t", "status", "meta"}
    assert orjson.loads(archive["meta"].tobytes())["latency"]["queue_s"] == 0.0


def test_npz_that_nobody_reads_on_leaves_no_buffer_that_cannot_be_closed() -> None:
    """Python 3.13 prints an error for a `BytesIO` that is dropped while a view of it is alive."""
    piece, *_ = ENCODERS["application/x-npz"].encode(_answer(np.ones((5, 2))))
    assert isinstance(memoryview(piece).obj, bytes)


def test_npz_is_the_same_bytes_for_the_same_answer() -> None:
    answer = _answer(np.ones((5, 2)))
    first, second = (np.load(io.BytesIO(_encode(answer, "x-npz"))) for _ in range(2))
    assert first.zip is not None
    assert second.zip is not None
    dates = {entry.date_time for found in (first, second) for entry in found.zip.infolist()}
    assert dates == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("shape", [(1, 1), (1000, 3), (300_000, 2)])
def test_npy(shape: tuple[int, ...]) -> None:
    samples = RNG.standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(np.load(io.BytesIO(_encode(_answer(samples), "x-npy"))), samples)


@pytest.mark.parametrize("name", ["json", "x-npz", "x-npy"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sizes_hold(name: str, dtype: type) -> None:
    """No number, step or sample takes more than its format says."""
    encoder = ENCODERS[f"application/{name}"]
    longest = -np.finfo(dtype).tiny * 1.2345678901234567
    samples = np.full((2_000, 3), longest, dtype=dtype)
    per_number = encoder.bytes_per_number[np.dtype(dtype).name]
    t = np.full(5_000, -1.2345678901234567e-300)
    accepted = np.zeros(5_000, dtype=bool)
    trace: TraceBody = {"sample": np.full(5_000, 99_999), "t": t, "h": t, "error": t, "accepted": accepted}
    size = len(_encode(_answer(samples, trace=trace), name))
    room = samples.size * per_number + 5_000 * encoder.bytes_per_step + 2_000 * encoder.bytes_per_sample
    assert size <= room + 3_000  # constant parts: headers, names, latency


def test_the_digest_is_of_bytes_in_c_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest_of(array) == digest_of(np.asfortranarray(array)) == digest_of(array.reshape(6))
    assert digest_of(array) != digest_of(array.astype(np.float64))
