"""The service as an ASGI application: its routes, and how errors look."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Match

import wildtta
from wildtta.serve.gate import Gate
from wildtta.serve.intake import parts, read_body
from wildtta.serve.opening import Opened
from wildtta.serve.page import page, page_headers
from wildtta.serve.problems import Problem
from wildtta.serve.schemas import (
    BINARY,
    PREDICT_BODY,
    STATE_BODY,
    Answer,
    Error,
    Made,
    NewStream,
    Overview,
    Ready,
    Stream,
    Streams,
)
from wildtta.serve.service import Service
from wildtta.serve.settings import Settings

__all__ = ["create_app"]

_STATE_HEADROOM = 4096
_MEANINGS = {
    400: "The request is not what HTTP, or this service, understands.",
    401: "No key.",
    403: "There is no such stream, or the token does not open it.",
    408: "The body did not arrive in time.",
    413: "Too much in one request.",
    415: "A type of body that is not taken.",
    422: "Something in the request is wrong; the detail says what to do.",
    429: "Too many of one kind; see Retry-After.",
    503: "More than the service can hold; see Retry-After.",
}


def create_app(settings: Settings | None = None, opened: Opened | None = None) -> FastAPI:
    """The application; `app.state.service` is the service in it, which starts and stops with the application."""
    service = Service(settings or Settings(), opened)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        yield
        await run_in_threadpool(service.stop)

    app = FastAPI(
        title="wildtta",
        version=wildtta.__version__,
        summary="Image classification that goes on learning, for each stream of images on its own.",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_middleware(Gate, metrics=service.metrics, most=service.settings.max_waiting)
    _errors(app)
    _watching(app, service)
    _streams(app, service)
    _predicting(app, service)
    _secured(app)
    return app


# -- routes ------------------------------------------------------------------------------------------------------------


def _watching(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page_() -> Response:
        return Response(page(), media_type="text/html", headers=page_headers())

    @app.get("/healthz", tags=["watching"], response_model=Ready, responses=_problems(503))
    async def healthz() -> Response:
        """Whether the process is at work; if not, it wants a restart."""
        return _condition(service, service.worker.alive)

    @app.get("/readyz", tags=["watching"], response_model=Ready, responses=_problems(503))
    async def readyz() -> Response:
        """Whether it takes requests; a disk that fails is told here, too, but does not make it unready."""
        return _condition(service, service.ready and service.worker.alive)

    @app.get(
        "/metrics",
        tags=["watching"],
        response_class=Response,
        responses={200: {"content": {CONTENT_TYPE_LATEST.partition(";")[0]: {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/overview", tags=["operator"], response_model=Overview, responses=_problems(401, 403, 422, 503))
    async def overview(
        request: Request,
        since: Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds; 0 for all.")] = 0.0,
    ) -> Response:
        """Every stream with its history since then."""
        service.check_operator(request.headers)
        return JSONResponse(service.overview(since))


def _condition(service: Service, good: bool) -> Response:
    if good:
        return JSONResponse({"status": "ok", "snapshots": service.snapshots()})
    return _told(Problem(503, "the service is starting or stopping", "ask again", retry_after=1))


def _streams(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/streams",
        status_code=201,
        tags=["operator"],
        response_model=Made,
        responses=_problems(400, 401, 403, 413, 422, 429, 503),
    )
    async def create(request: Request, wanted: NewStream) -> Response:
        """Make a stream. The token in the answer opens it; it is not told again."""
        if not service.settings.open:
            service.check_operator(request.headers)
        made = await service.create(wanted.method, wanted.hyperparameters, wanted.guard, wanted.seed, wanted.name)
        return JSONResponse(made, 201)

    @app.get("/v1/streams", tags=["operator"], response_model=Streams, responses=_problems(401, 403, 503))
    async def list_streams(request: Request) -> Response:
        """All streams."""
        service.check_operator(request.headers)
        return JSONResponse({"streams": [service.view(record) for record in list(service.records.values())]})

    @app.get("/v1/streams/{id}", tags=["stream"], response_model=Stream, responses=_problems(401, 403, 503))
    async def show(request: Request, id: str) -> Response:
        """A stream and its health."""
        return JSONResponse(service.view(service.open(id, request.headers)))

    @app.delete("/v1/streams/{id}", status_code=204, tags=["stream"], responses=_problems(401, 403, 429, 503))
    async def delete(request: Request, id: str) -> Response:
        """Forget a stream, on disk too."""
        await service.delete(service.open(id, request.headers))
        return Response(status_code=204)

    @app.post("/v1/streams/{id}/reset", tags=["stream"], response_model=Stream, responses=_problems(401, 403, 429, 503))
    async def reset(request: Request, id: str) -> Response:
        """Let a stream begin anew, from the model as it was."""
        return JSONResponse(await service.reset(service.open(id, request.headers)))

    @app.get(
        "/v1/streams/{id}/state",
        tags=["stream"],
        response_class=Response,
        responses=_problems(401, 403, 429, 503) | {200: {"content": {"application/octet-stream": {"schema": BINARY}}}},
    )
    async def download(request: Request, id: str) -> Response:
        """All that a stream has learnt, as a safetensors file; `Adapter.load` reads it, too."""
        record = service.open(id, request.headers)
        name = {"Content-Disposition": f'attachment; filename="{record.id}.safetensors"'}
        return Response(await service.state(record), media_type="application/octet-stream", headers=name)

    @app.put(
        "/v1/streams/{id}/state",
        tags=["stream"],
        response_model=Stream,
        responses=_problems(400, 401, 403, 408, 413, 415, 422, 429, 503),
        openapi_extra=STATE_BODY,
    )
    async def upload(request: Request, id: str) -> Response:
        """Let a stream go on from such a file. One that does not fit changes nothing."""
        record = service.open(id, request.headers)
        if _kind(request) != "application/octet-stream":
            raise _wrong_kind(request, "application/octet-stream")
        limit = service.state_limit + _STATE_HEADROOM
        async with read_body(request, service.budget, limit, service.settings.timeout_s) as body:
            return JSONResponse(await service.replace(record, body))


def _predicting(app: FastAPI, service: Service) -> None:
    settings = service.settings
    outputs = service.opened.model.outputs
    kinds = {"multipart/form-data": "form", "application/json": "json", "application/x-npy": "npy"}

    @app.post(
        "/v1/streams/{id}/predict",
        tags=["stream"],
        response_model=Answer,
        responses=_problems(400, 401, 403, 408, 413, 415, 422, 429, 503),
        openapi_extra=PREDICT_BODY,
    )
    async def predict(
        request: Request,
        id: str,
        learn: Annotated[bool, Query(description="false: predict only.")] = True,
        top: Annotated[int, Query(ge=1, le=100, description="How many classes an image.")] = min(5, outputs),
    ) -> Response:
        """Classify images, and let the stream learn from them.

        Pictures (JPEG, PNG, WebP) come as a form or as base64 and are prepared as the model wants them; a .npy array has the
        model's size already. What one request brings is one step: predicted with what was learnt before it.
        """
        record = service.open(id, request.headers)
        kind = kinds.get(_kind(request))
        if kind is None:
            raise _wrong_kind(request, *kinds)
        service.worker.check_room(record.id)
        async with read_body(request, service.budget, settings.max_body, settings.timeout_s) as body:
            files = await parts(request, body, settings.max_images) if kind == "form" else []
            return JSONResponse(await service.predict(record, body, kind, files, learn, top))


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _wrong_kind(request: Request, *kinds: str) -> Problem:
    return Problem(415, f"a body of type {_kind(request)[:80]!r} is not taken here", f"send {' or '.join(kinds)}")


# -- errors ------------------------------------------------------------------------------------------------------------


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Error, "description": _MEANINGS[status]} for status in statuses}


def _told(problem: Problem) -> Response:
    return JSONResponse(problem.content, problem.status, problem.headers)


def _errors(app: FastAPI) -> None:
    """Whatever goes wrong, the answer has the same shape."""

    @app.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> Response:
        return _told(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        faults = [f"{'.'.join(map(str, fault['loc']))[:100]}: {fault['msg'][:200]}" for fault in error.errors()[:5]]
        return _told(
            Problem(422, "; ".join(faults) or "the request is not valid", "see /openapi.json for what is taken")
        )

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        response = _told(Problem(error.status_code, str(error.detail), "see /openapi.json for what there is"))
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(_allowed(app, request))
        return response

    @app.exception_handler(Exception)
    async def fault(_: Request, __: Exception) -> Response:
        return _told(
            Problem(500, "a fault of the service", "it is in the service's log; other requests are not affected")
        )


def _allowed(app: FastAPI, request: Request) -> list[str]:
    """What may be done at a path: Starlette names the methods of its first route alone."""
    found = (route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return sorted({method for route in found for method in getattr(route, "methods", None) or ()})


def _secured(app: FastAPI) -> None:
    """Say in the OpenAPI document what opens what."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            document.setdefault("components", {})["securitySchemes"] = {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A stream's token, or the operator's key.",
                },
            }
            for path, operations in document["paths"].items():
                if path.startswith("/v1"):
                    for operation in operations.values():
                        operation["security"] = [{"token": []}]
            _prune(document["paths"])
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _prune(paths: Mapping[str, Any]) -> None:
    """FastAPI documents an error shape of its own for 422, which this service never sends."""
    for operations in paths.values():
        for operation in operations.values():
            shape = (
                operation["responses"].get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
            )
            if shape.get("$ref", "").endswith("HTTPValidationError"):
                del operation["responses"]["422"]
