"""Addresses that are read: GET, and HEAD like it but without a body (which the server leaves out)."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path

ModelName = Annotated[str, Path(description="name of the model", openapi_examples={"moons": {"value": "moons"}})]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def read(router: APIRouter, path: str, **described: Any) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that makes a function answer GET and HEAD at a path.

    Args:
        router: gets the route.
        path: of the route.
        described: arguments of the route that its OpenAPI description shows.
    """

    def add(endpoint: Endpoint) -> Endpoint:
        # The first route answers. The second describes: OpenAPI would give both methods of one route the same id.
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
        router.add_api_route(path, endpoint, methods=["GET"], **described)
        return endpoint

    return add
