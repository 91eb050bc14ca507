"""The Dockerfile keeps its promises: pinned, wheels only, no build tools left, no root."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.locks.generate import CPU_INDEX

ROOT = Path(__file__).parents[2]
Stage = list[tuple[str, str]]
Stages = list[Stage]


def rests(stage: Stage, word: str) -> list[str]:
    return [rest for found, rest in stage if found == word]


def environment(stage: Stage) -> dict[str, str]:
    return dict(item.split("=", 1) for rest in rests(stage, "ENV") for item in rest.split())


def run_shell(script: str, folder: Path) -> str:
    # the Dockerfile's `python` is the one that runs the tests
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_stages_stand_on_the_pinned_base(stages: Stages) -> None:
    outside = [rest for (_, rest), *_ in stages if not rest.startswith("base")]
    (image,) = outside
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm AS base", image)  # by its patch release
    assert len(stages) >= 3


def test_every_builder_can_read_it() -> None:
    # the classic builder does not support `# syntax=`, --mount or here-documents
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"^#\s*(syntax|escape|check)\s*=", text, re.MULTILINE | re.IGNORECASE)
    assert not re.search(r"--mount|--link|--chmod|<<", text)


def test_no_compiler_is_installed_and_nothing_compiled(stages: Stages) -> None:
    commands = [rest for stage in stages for rest in rests(stage, "RUN")]
    assert not [command for command in commands if re.search(r"apt|gcc|curl|wget|build-essential", command)]
    build = environment(stages[1])
    assert build["PIP_ONLY_BINARY"] == ":all:"
    assert build["PIP_NO_CACHE_DIR"] == "1"


def test_the_last_stage_only_copies_what_was_built(stages: Stages) -> None:
    last = stages[-1]
    assert rests(last, "COPY") == ["--from=build /opt/venv /opt/venv", "--from=build /opt/pathline /opt/pathline"]
    assert [command.split()[:2] for command in rests(last, "RUN")] == [["pip", "uninstall"], ["useradd", "--uid"]]


def test_every_package_of_ours_is_copied_and_let_into_the_context(stages: Stages) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = [pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]]
    copied = [rest for rest in rests(stages[1], "COPY") if "/opt/pathline" in rest]
    sdk = "clients/python/pathline"  # `fleet` uses its format of a bulk folder
    assert copied == [*(f"{name} /opt/pathline/{name}" for name in packages), f"{sdk} /opt/pathline/pathline"]
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert ignore[0] == "*"
    assert {line[1:] for line in ignore if line[0] == "!"} == {*packages, sdk, "deploy/locks"}


def test_nothing_is_installed_whose_hash_is_not_known(stages: Stages) -> None:
    installs = [rest for stage in stages for rest in rests(stage, "RUN") if "pip" in rest and " install " in rest]
    assert [re.findall(r"-r (\S+)", install) for install in installs] == [["torch.txt"], ["base.txt"]]
    assert all("--no-deps --require-hashes" in install for install in installs)
    assert installs[-1].endswith("&& pip --python /opt/venv/bin/python check")  # the locks lack nothing
    copies = [rest for rest in rests(stages[1], "COPY") if "/opt/pathline" not in rest]
    assert copies == ["deploy/locks/${TORCH_LOCK}.txt ./torch.txt", "deploy/locks/base.txt ./"]


@pytest.mark.parametrize(
    ("value", "arguments"),
    [("", ""), ("https://index.example/simple", "--retries 2 --extra-index-url https://index.example/simple")],
)
def test_torch_index_is_an_argument_and_may_be_empty(
    stages: Stages, value: str, arguments: str, tmp_path: Path
) -> None:
    assert rests(stages[1], "ARG") == [f"TORCH_INDEX_URL={CPU_INDEX}", "TORCH_LOCK=torch-cpu"]
    (install,) = [rest for rest in rests(stages[1], "RUN") if "-r torch.txt" in rest]
    (option,) = re.findall(r"\$\{TORCH_INDEX_URL:.*?\}", install)
    assert run_shell(f"TORCH_INDEX_URL='{value}'; echo {option}", tmp_path).strip() == arguments


def test_the_user_is_not_root_and_owns_the_folders_of_volumes(stages: Stages) -> None:
    last = stages[-1]
    (user,) = rests(last, "USER")
    uid, gid = map(int, user.split(":"))  # numbers, so that a cluster can see that it is not root
    assert uid > 0
    assert gid > 0
    (make,) = [command for command in rests(last, "RUN") if "useradd" in command]
    assert f"--uid {uid} " in make
    folder = rests(last, "WORKDIR")[-1]
    assert f"install -d -o pathline -g pathline {folder}/checkpoints {folder}/runs" in make
    assert last.index(("USER", user)) > max(i for i, (word, _) in enumerate(last) if word in ("RUN", "COPY"))


def test_settings_in_the_image_are_settings_of_the_service(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.settings import load_settings, unknown_variables

    for name in [name for name in os.environ if name.startswith("PATHLINE_")]:
        monkeypatch.delenv(name)
    for name, value in environment(stages[-1]).items():
        if name.startswith("PATHLINE_"):
            monkeypatch.setenv(name, value)
    assert unknown_variables() == []
    settings = load_settings()
    assert settings.host == "0.0.0.0"  # noqa: S104  (in a container nothing else is reachable)
    assert rests(stages[-1], "EXPOSE") == [str(settings.port)]
