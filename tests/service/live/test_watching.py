"""Routes for operators, over real sockets."""

import httpx
import pytest

from .conftest import Live


def test_series_do_not_grow_with_random_paths(live: Live) -> None:
    with httpx.Client(base_url=live.url) as http:
        for path in ("/nowhere", "/v1/models/none", "/metrics"):
            http.get(path)
        before = len(http.get("/metrics").text.splitlines())
        for k in range(500):
            http.get(f"/random/{k}" if k % 2 else f"/v1/models/x{k}")
        assert len(http.get("/metrics").text.splitlines()) == before


@pytest.mark.parametrize("path", ["/metrics", "/livez"])
def test_health_and_metrics_answer_without_redirect(live: Live, path: str) -> None:
    answer = httpx.get(live.url + path, follow_redirects=False)
    assert answer.status_code == 200
    assert not answer.history
