"""Every route in the OpenAPI description has examples, and the service answers them as described.

``RECORD=1 pytest tests/service/test_openapi.py`` records the answers again.
"""

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from pydantic import SecretStr

from service import examples
from service.app import create_app
from service.oip.tensors import BINARY
from service.settings import Settings

pytestmark = pytest.mark.anyio

KEY = "k" * 32
FILE = Path(examples.__file__).with_name("recorded_answers.json")


@pytest.fixture
async def http(repository: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(models_dir=repository, watch_s=0, threads=1, admin_key=SecretStr(KEY)))
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", headers={"Authorization": f"Bearer {KEY}"}
    )
    async with app.router.lifespan_context(app), client:
        yield client


def _operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _examples(described: dict[str, Any]) -> dict[str, Any]:
    """Return the examples of a body or parameter by name."""
    named = {name: example["value"] for name, example in described.get("examples", {}).items()}
    return named | ({"example": described["example"]} if "example" in described else {})


def _is_binary(content: dict[str, Any]) -> bool:
    return content.get("schema", {}).get("format") == "binary"


def _validate(description: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    jsonschema_rs.Draft202012Validator(schema | {"components": description["components"]}).validate(value)


def _requests(path: str, operation: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield name, address and body of each request made from the examples of an operation."""
    query = []
    for parameter in operation.get("parameters", ()):
        assert parameter["in"] in ("path", "query"), "add a request for this example"
        values = _examples(parameter)
        assert values, f"{path}: no example of {parameter['name']}"
        value = str(next(iter(values.values())))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", value)
        else:
            query.append(f"{parameter['name']}={value}")
    path += "?" + "&".join(query) if query else ""
    if "requestBody" not in operation:
        yield "answer", path, None
        return
    bodies = _examples(operation["requestBody"]["content"]["application/json"])
    assert bodies, f"{path}: no example of a request"
    for name, body in bodies.items():
        yield name, path, body


async def test_every_example_is_answered_as_it_says(http: httpx.AsyncClient) -> None:
    description, recorded = (await http.get("/openapi.json")).json(), {}
    for method, path, operation in sorted(_operations(description), key=lambda each: "unload" in each[1]):
        offered = operation["responses"]["200"]["content"]
        for name, address, body in _requests(path, operation):
            if body is not None:
                _validate(description, operation["requestBody"]["content"]["application/json"]["schema"], body)
            for media, content in offered.items():
                sent = _for_bytes(body) if media == BINARY else body
                answer = await http.request(method, address, json=sent, headers={"Accept": media})
                where = f"{method} {address} as {media}, example {name!r}"
                assert answer.status_code == 200, f"{where}: {answer.text}"
                assert answer.headers["content-type"].partition(";")[0] == media, where
                if (key := f"{method} {path}") in examples.ANSWERS and media == "application/json":
                    recorded.setdefault(key, {})[name] = _shortened(answer.json())
                if not _is_binary(content) and not os.environ.get("RECORD"):
                    values = _examples(content)
                    assert values, f"{where}: no example of an answer"
                    example = values[name] if name in values else next(iter(values.values()))
                    _compare(description, content["schema"], example, answer)
    if os.environ.get("RECORD"):
        FILE.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
    assert _members(recorded) == _members(json.loads(FILE.read_text())), "record the answers again: see above"


def _members(value: Any) -> Any:
    """Return the names of members at every depth, those of the last entry of lists."""
    if isinstance(value, dict):
        return {name: _members(each) for name, each in value.items()}
    return [_members(each) for each in value[-1:]] if isinstance(value, list) else None


def _shortened(value: Any) -> Any:
    """Keep the last two entries of lists, and eight numbers."""
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        numbers = all(isinstance(each, int | float | None) for each in value)
        return [_shortened(each) for each in value[-8 if numbers else -2 :]]
    return value


def _for_bytes(body: Any) -> dict[str, Any]:
    """An infer request for a binary response, which is requested by a parameter instead of Accept."""
    return body | {"parameters": body["parameters"] | {"binary_data_output": True}}


def _compare(description: dict[str, Any], schema: dict[str, Any], example: Any, answer: httpx.Response) -> None:
    _validate(description, schema, example)
    media = answer.headers["content-type"].partition(";")[0]
    if media == "application/json":
        _validate(description, schema, answer.json())
        _has_members(answer.json(), example, "answer")
    elif media == "text/event-stream":
        events, shown = _events(answer.text), _events(example)
        assert set(shown) - set(events) <= {"progress"}  # requests that finish at once have no progress
        assert set(events) <= set(shown)
        assert next(iter(events)) == next(iter(shown)) == "start"
        assert "completed" in events
        for event, data in events.items():
            _has_members(data, shown[event], event)
    else:
        assert example.splitlines()[0] in answer.text


def _has_members(found: Any, example: Any, where: str) -> None:
    """Check that a response has all members of the example at every depth, in the last entry of lists."""
    if isinstance(example, dict) and isinstance(found, dict):
        assert set(example) <= set(found), f"{where} has no {set(example) - set(found)}"
        for name, value in example.items():
            _has_members(found[name], value, f"{where}.{name}")
    elif isinstance(example, list) and isinstance(found, list) and example and found:
        _has_members(found[-1], example[-1], f"{where}[-1]")


def _events(text: str) -> dict[str, Any]:
    return {name: json.loads(data) for name, data in re.findall(r"^event: (.*)\ndata: (.*)$", text, re.MULTILINE)}


async def test_every_error_is_described_with_an_example(running: Any) -> None:
    description = (await running.http.get("/openapi.json")).json()
    count = {"problem": 0, "protocol": 0}
    for method, path, operation in _operations(description):
        for status, response in operation["responses"].items():
            if status in ("200", "304"):
                continue
            of_protocol = path == "/v2" or path.startswith("/v2/")
            media = "application/json" if of_protocol else "application/problem+json"
            assert list(response["content"]) == [media], f"{method} {path} {status}"
            content = response["content"][media]
            model = content["schema"]["$ref"].rpartition("/")[2]
            assert model == ("ErrorBody" if of_protocol else "ProblemBody"), f"{method} {path} {status}"
            examples = _examples(content)
            assert examples, f"{method} {path} {status}"
            for slug, problem in examples.items():
                _validate(description, content["schema"], problem)
                if not of_protocol and status != "default":
                    assert (problem["type"], str(problem["status"])) == (f"/problems/{slug}", status)
            count["protocol" if of_protocol else "problem"] += len(examples)
    assert min(count.values()) > 20
    assert sum(count.values()) > 60


async def test_every_operation_has_a_title_and_a_described_tag(running: Any) -> None:
    description = (await running.http.get("/openapi.json")).json()
    tags = {tag["name"]: tag["description"] for tag in description["tags"]}
    titles = [operation["summary"] for _, _, operation in _operations(description)]
    assert len(set(titles)) == len(titles)
    used = [operation["tags"] for _, _, operation in _operations(description)]
    assert [len(names) for names in used] == [1] * len(used)
    assert {name for [name] in used} == set(tags)
    assert all(tags.values())


async def test_the_framework_s_own_errors_are_not_described(running: Any) -> None:
    text = (await running.http.get("/openapi.json")).text
    assert "HTTPValidationError" not in text
    paths = json.loads(text)["paths"]
    assert "422" in paths["/v1/sample"]["post"]["responses"]
    assert {"400", "404"} <= set(paths["/v2/models/{model_name}/infer"]["post"]["responses"])
    assert not [path for path in paths if path.startswith("/v2") and "422" in str(paths[path])]
