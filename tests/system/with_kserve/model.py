"""Runs with kserve's own packages: reads a manifest into kserve's V1beta1InferenceService and prints its content.

The argument is the file. A member that the model or a model of Kubernetes' client does not have ends it with an error.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import kserve  # pyright: ignore[reportMissingImports]
import kubernetes.client as kubernetes  # pyright: ignore[reportMissingImports]
import yaml


def read(kind: str, value: Any, where: str) -> Any:
    """Read a value as one of the types in the models' descriptions."""
    if found := re.fullmatch(r"[lL]ist\[(.*)\]", kind):
        return [read(found.group(1), item, f"{where}[{k}]") for k, item in enumerate(value)]
    if found := re.fullmatch(r"[dD]ict[(\[]str, (.*)[)\]]", kind):
        return {key: read(found.group(1), item, f"{where}.{key}") for key, item in value.items()}
    if kind in ("str", "int", "bool", "object", "IntOrString", "ResourceQuantity", "V1beta1MetricQuantity"):
        wrong = kind in ("str", "int", "bool") and type(value).__name__ != kind
        if wrong:
            raise TypeError(f"{where} is {value!r}; expected {kind}")
        return value
    model = getattr(kserve, kind, None) or getattr(kubernetes, kind)
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    if unknown := set(value) - set(names):
        raise TypeError(f"{where}: {kind} has no {', '.join(sorted(unknown))}")
    return model(**{names[key]: read(model.openapi_types[names[key]], item, key) for key, item in value.items()})


def written(value: Any) -> Any:
    """Return a model as a manifest."""
    if isinstance(value, list):
        return [written(item) for item in value]
    if not hasattr(value, "openapi_types"):
        return value
    members = {key: getattr(value, name) for name, key in value.attribute_map.items()}
    return {key: written(item) for key, item in members.items() if item is not None}


def main(file: str) -> None:
    content = yaml.safe_load(Path(file).read_text())
    service = read("V1beta1InferenceService", content, "manifest")
    print(json.dumps(written(service)))


if __name__ == "__main__":
    main(*sys.argv[1:])
