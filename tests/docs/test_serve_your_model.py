"""The commands of "Serve your model" import the networks of the examples, and its requests are answered."""

import json
import re
import shlex
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from models.__main__ import main
from service.app import create_app
from service.settings import load_settings
from tests.examples.support import load_example

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2].joinpath("docs/serve-your-model.md").read_text()
COMMANDS = {
    name: shlex.split(text.replace("\\\n", " "))
    for text in re.findall(r"-m models (import (?:.*\\\n)*.*)", PAGE)
    for name in re.findall(r"--name (\w+)", text)
}


def export_all(folder: Path) -> None:
    """Write the files that the commands name."""
    torch.manual_seed(0)
    robot, latent, mel, edm = map(load_example, ("action_transformer", "latent_image", "mel_decoder", "edm"))
    chunk = (torch.randn(4, robot.HORIZON, robot.ACTIONS), torch.rand(4))
    told = (torch.randn(4, robot.PATCHES, robot.WIDTH), torch.randn(4, robot.STATE))
    robot.export(robot.ActionTransformer().eval(), (*chunk, *told), folder / "actions.pt2")
    robot.export(robot.VisionEncoder().eval(), (torch.rand(4, 3, 16, 16),), folder / "vision.pt2")
    states = torch.randn(4, *latent.LATENT)
    latent.export(latent.Velocity().eval(), (states, torch.rand(4)), folder / "network.pt2")
    latent.export(latent.Decoder().eval(), (states,), folder / "vae.pt2")
    mel.exported(mel.MelDecoder().eval(), folder / "mel.pt2")
    np.save(folder / "mean.npy", mel.MEAN)
    np.save(folder / "deviation.npy", mel.DEVIATION)
    edm.save(edm.train(20), folder / "edm.pt2")


async def test_its_commands_import_the_examples_and_its_requests_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export_all(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(tmp_path / "models"))
    assert set(COMMANDS) == {"pictures", "latent", "actions", "mel", "edm", "mine"}
    for name in ("latent", "actions", "mel", "edm"):  # diffusers' own network: tests/system/test_diffusers.py
        assert main(COMMANDS[name]) == 0, name
    told = capsys.readouterr().out
    assert "requests give image: uint8 of shape [3, 16, 16]; state: float32 of shape [6]\n" in told
    assert "requests give mu: float32 of shape [80, T up to 2000], or leave it out; mask: bool of" in told
    bodies = [json.loads(body) for body in re.findall(r"-d '(\{.*\})'", PAGE)]
    [of_mel] = [body for body in bodies if body["model"] == "mel"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    [by_npz] = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if "request.npz" in block]
    exec(f"import tempfile\nfrom pathlib import Path\n{by_npz}", {})  # noqa: S102  (the page's own code)
    app = create_app(load_settings(threads=1, watch_s=0, device="cpu"))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as http:
        found = (await http.post("/v1/sample", json=of_mel)).json()
        assert found["shape"] == [1, 80, 344], found
        content = (tmp_path / "request.npz").read_bytes()
        sent = await http.post("/v1/sample", content=content, headers={"Content-Type": "application/x-npz"})
        assert sent.json()["shape"] == [1, 8, 4], sent.text
        for name, shape in (("latent", [1, 3, 16, 16]), ("edm", [1, 2])):
            found = (await http.post("/v1/sample", json={"model": name, "num_samples": 1, "solver": "euler-2"})).json()
            assert found["shape"] == shape, found
