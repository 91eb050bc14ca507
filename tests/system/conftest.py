"""The real service as its own process, and a real Chromium that opens its page."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml
from playwright.sync_api import BrowserContext, Page, sync_playwright
from pydantic import TypeAdapter

from models.architectures.analytic import Gaussian, GaussianConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.bound import add_to_report
from models.checkpoint.card import read_card
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import ColumnCard, Decoder
from tests.processes import ROOT, free_port, stop
from tests.service.serving import serving
from tests.system.bulk import JOB, here
from tests.system.support import until

LONGEST = (
    *("onnx", "bulk", "ray_jobs", "page_access", "page_way", "nginx", "ray_serve", "page_faults", "page_explore"),
    *("page", "torchcfm", "diffusers", "page_live", "lerobot"),
)
"""The files that take longest, by their names after `test_`, ordered for four workers with two files each at a time.

The exports of `onnx` give way to all other processes, and the short `page_way` waits behind them.
"""
NAMES = ("circle", "square", "star")
COLUMNS = (("rooms", "whole", 8), ("area m2", "number", 200), ("price", "number", 3e6))
WORDS = ["samples are close to unseen data", "WARNING: column price differs from the data"]
COLUMN_LIST = TypeAdapter(tuple[ColumnCard, ...])
FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, which would run alone at the end."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """moons (2-D), gaussian (exact, float64), digits (4x4 pictures), shapes (by class), houses (rows), a broken one."""
    root = tmp_path_factory.mktemp("checkpoints")
    about: dict[str, Any] = {"dataset": {}, "training": {}, "seed": 0}
    torch.manual_seed(0)
    wiggly = 100.0  # so that adaptive solvers take long, and reject steps
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=1, max_frequency=wiggly))
    save(root, "moons", network, Decoder.identity((2,)), **about)
    save(root, "gaussian", Gaussian(GaussianConfig()), Decoder.identity((2,)), **about)
    pca = Decoder.pca(torch.full((16,), 0.5), torch.randn(3, 16), torch.ones(3), (4, 4), clip=(0.0, 1.0))
    latent = ResidualMLP(ResidualMLPConfig(dim=3, hidden=8, blocks=1, time_width=4))
    save(root, "digits", latent, pca, **about)
    columns = [{"name": name, "kind": kind, "low": 0, "high": high} for name, kind, high in COLUMNS]
    rows = Decoder.affine(
        torch.tensor([1.0, 20.0, 4e5]), torch.tensor([4.0, 90.0, 9e5]), columns=COLUMN_LIST.validate_python(columns)
    )
    houses = save(
        root,
        "houses",
        ResidualMLP(ResidualMLPConfig(dim=3, hidden=8, blocks=1, time_width=4)),
        rows,
        dataset={"source": "houses.csv", "samples": 1350, "held_out": 150},
        training={"steps": 1500, "parameters": 1000, "train_s": 41.2, "finished": "2026-05-04T10:00:00+00:00"},
        seed=0,
    )
    examples = [[3.0, 70.0, 8e5], [5.0, 110.0, 1.2e6]]
    add_to_report(houses, read_card(houses), {"report": {"words": WORDS}, "examples": examples})
    by_class = ResidualMLPConfig(dim=2, hidden=32, blocks=1, condition=NamedCondition.label(classes=3, names=NAMES))
    save(root, "shapes", ResidualMLP(by_class), Decoder.identity((2,)), **about)
    (save(root, "broken", network, Decoder.identity((2,)), **about) / "weights.safetensors").write_bytes(b"short")
    return root


@pytest.fixture(scope="session")
def service(repository: Path) -> Iterator[str]:
    """Run the service on a free port; yield its address and check that it exits cleanly."""
    with serving(repository, max_queue=8) as (url, process):  # a queue that a test can fill
        yield url
        assert stop(process) == 0


@pytest.fixture(scope="module")
def prometheus(service: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Run Debian's Prometheus with the configuration of deploy/ and short intervals; yield a client of it."""
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    nobody = "127.0.0.1:9"  # nothing listens there
    config["scrape_configs"][0]["static_configs"] = [{"targets": [service.removeprefix("http://"), nobody]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(ROOT / "deploy" / "prometheus" / "rules.yml", folder)
    running = subprocess.Popen(
        [
            "/usr/bin/prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        until("Prometheus", lambda: client.get("/-/ready").status_code == 200)
        yield client
    running.kill()
    running.wait()


@pytest.fixture(scope="module")  # its event loop would block asynchronous tests
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """Run Debian's Chromium with an empty profile."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path="/usr/bin/chromium",
            args=FLAGS.split(),
            permissions=["clipboard-read", "clipboard-write"],
            reduced_motion="no-preference",
            viewport={"width": 1280, "height": 900},
        )
        context.set_default_timeout(60_000)  # on a busy machine
        yield context
        context.close()


@pytest.fixture
def page(browser: BrowserContext, service: str) -> Iterator[Page]:
    """Open an empty tab; the test fails if the page logs an error or sends a request to another host."""
    tab = browser.new_page()
    faults: list[str] = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("request", lambda request: faults.append(request.url) if not request.url.startswith(service) else None)
    yield tab
    tab.close()
    assert faults == []


@pytest.fixture
def environment(repository: Path) -> dict[str, str]:
    """The environment of `python -m fleet`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PATHLINE_")}
    return kept | {"PATHLINE_MODELS_DIR": str(repository), "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="session")
def whole(repository: Path) -> str:
    """Return the fingerprint of the bulk job, made by one process in large shards."""
    environment = {"PATHLINE_MODELS_DIR": str(repository)}
    return here(environment, "sample", *JOB[:-1], "1280", "--to", "memory://whole")
