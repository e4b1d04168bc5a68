"""Query parameters: one that an endpoint does not have is refused with the names that there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel


def known_parameters(*also: str) -> Callable[[Request], Awaitable[None]]:
    """Return what refuses parameters that are not those of the endpoint, nor `also`, with 400.

    A misspelt filter would otherwise filter nothing.
    """

    async def check(request: Request) -> None:
        names = parameters_of(request.scope["route"]) | set(also)
        for name in request.query_params:
            if name not in names:
                there = f"there are {', '.join(sorted(names))}" if names else "there are none"
                raise HTTPException(400, f"{name[:64]!r} is no parameter here; {there}")

    return check


def parameters_of(route: APIRoute) -> set[str]:
    """Return the query parameters of an endpoint: those of its function and of its description."""
    names: set[str] = set()
    for field in route.dependant.query_params:
        kind = field.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names |= kind.model_fields.keys()
        else:
            names.add(field.alias)
    described = (route.openapi_extra or {}).get("parameters", ())
    return names | {each["name"] for each in described if each["in"] == "query"}
