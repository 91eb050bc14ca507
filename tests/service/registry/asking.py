"""Asking a registry as requests do."""

from service.registry.registry import Registry


def answers(registry: Registry, name: str, version: int | None = None) -> int:
    """The version that a request is answered by; it is loaded first where needed."""
    with registry.lease(name, version) as model:
        return model.version
