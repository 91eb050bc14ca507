"""Accept headers as RFC 9110 reads them."""

import pytest

from service.errors import ProblemError
from service.http.negotiation import accepts_coding, choose

OFFERED = ("application/json", "application/x-npz", "application/x-npy")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("application/x-npz", "application/x-npz"),
        ("APPLICATION/X-NPZ", "application/x-npz"),
        ("application/x-npz, application/json", "application/json"),
        ("application/x-npz, application/json;q=0.5", "application/x-npz"),
        ("application/json;q=0.2, application/x-npy;q=0.8, */*;q=0.1", "application/x-npy"),
        ("*/*;q=0.5, application/json;q=0", "application/x-npz"),
        ("application/json;q=0, application/*", "application/x-npz"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
        ("application/x-npz;v=1", "application/x-npz"),
        ("nonsense, application/x-npy", "application/x-npy"),
    ],
)
def test_choice(accept: str | None, expected: str) -> None:
    assert choose(accept, OFFERED) == expected


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "*/*;q=0", "json", "*/*;q=2", "*/*;q=x"])
def test_nothing_fits(accept: str) -> None:
    with pytest.raises(ProblemError, match="application/x-npz") as caught:
        choose(accept, OFFERED)
    assert caught.value.kind.status == 406


@pytest.mark.parametrize(
    ("accepted", "gzip"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP;q=0.5, br", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("*", True),
        ("*;q=0", False),
        ("br, identity", False),
        ("gzip;q=x", False),
        ("notgzip", False),
    ],
)
def test_codings(accepted: str | None, gzip: bool) -> None:
    assert accepts_coding("gzip", accepted) is gzip
