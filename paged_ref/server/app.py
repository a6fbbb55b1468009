"""The routes: OpenAI's API, health, metrics, the page, its events and its controls."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..generation.llm import LLM
from ..generation.prompts import to_token_ids
from .engine_thread import EngineThread, Job
from .errors import ApiError
from .observer import Observer, Viewer
from .protocol import Call, json_object, parse
from .replies import Reply
from .transport import ClientLeft, EventStream, or_leave, read_body

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
MOST_VIEWERS = 100
SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class Settings:
    """The server's settings.

    Attributes:
        model_name: the name that clients use.
        api_key: the key that `/v1` asks for; None: no key.
        presenter_key: the key that pauses, steps and slows the engine; None: no client may.
        max_queue: requests that may wait; more get 429.
        max_body: most bytes of a request's body.
        show_text: put text of prompts and replies on the page.
    """

    model_name: str = "smollm2-135m"
    api_key: str | None = None
    presenter_key: str | None = None
    max_queue: int = 256
    max_body: int = 1 << 20
    show_text: bool = False


class Service:
    """The engine thread, the observer and what the routes share."""

    def __init__(self, llm: LLM, settings: Settings) -> None:
        self.llm, self.settings = llm, settings
        self.observer = Observer(llm, settings.show_text)
        self.engine = EngineThread(llm, settings.max_queue, self.observer.watch)
        self.observer.engine = self.engine
        self.tokenizing = ThreadPoolExecutor(
            1, "tokenizer"
        )  # one thread: tokenizers are not made for several
        self.draining = False
        self.created = int(time.time())

    def drain(self) -> None:
        """Take no more requests, let the running ones end, and close the pages' streams."""
        self.draining = True
        self.engine.control(paused=False, delay=0.0)
        for viewer in list(self.observer.viewers):
            viewer.close()

    def authorize(self, request: Request) -> None:
        """Raise `ApiError` 401 unless the request has the API key."""
        key = self.settings.api_key
        if key is not None and not _has_key(request, "authorization", f"Bearer {key}"):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    async def complete(self, request: Request, chat: bool) -> Any:
        """Answer a completion request."""
        self.authorize(request)
        _require_json(request)
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after=5)
        self.engine.reserve(1)
        reserved = 1
        jobs: list[Job] = []

        def leave() -> None:
            nonlocal reserved
            for job in jobs:
                self.engine.cancel(job)
            self.engine.release(reserved)
            reserved = 0

        try:
            call = parse(await read_body(request, self.settings.max_body), chat, self.settings.model_name)
            self.engine.reserve(len(call.prompts), held=1)
            reserved = len(call.prompts)
            jobs += await or_leave(request.receive, self._submit(call))
            reply = Reply(jobs, call.sampling.n, chat, self.settings.model_name)
            if call.stream:
                first = await or_leave(request.receive, reply.news(0))
                stream = reply.stream(first, call.with_usage, lambda: _merge(reply, first[1]))
                response: Any = EventStream(stream, leave)
                return response
            body = await or_leave(request.receive, reply.whole())
        except BaseException:
            leave()
            raise
        leave()
        return JSONResponse(body)

    async def _submit(self, call: Call) -> list[Job]:
        loop = asyncio.get_running_loop()
        model = self.llm.model
        token_ids = []
        for prompt in call.prompts:
            try:
                token_ids.append(
                    await loop.run_in_executor(
                        self.tokenizing, to_token_ids, prompt, model.tokenizer, model.vocab_size
                    )
                )
            except ValueError as error:
                raise ApiError(400, str(error)) from error
        return [self.engine.submit(ids, call.sampling) for ids in token_ids]


async def _merge(reply: Reply, first_ended: bool) -> AsyncIterator[dict[int, str]]:
    """Yield new texts of all jobs as they come."""
    waiting = {
        asyncio.create_task(reply.news(i)): i for i in range(len(reply.jobs)) if i > 0 or not first_ended
    }
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                i = waiting.pop(task)
                texts, ended = task.result()
                if not ended:
                    waiting[asyncio.create_task(reply.news(i))] = i
                yield texts
    finally:
        for task in waiting:
            task.cancel()


def _has_key(request: Request, header: str, wanted: str) -> bool:
    """Compare in a time that does not depend on where the texts differ."""
    return hmac.compare_digest(request.headers.get(header, "").encode(), wanted.encode())


def _require_json(request: Request) -> None:
    # A page of another origin can send other types without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "send the body with Content-Type: application/json", code="not_json")


def make_app(llm: LLM, settings: Settings | None = None) -> FastAPI:
    """Return the ASGI application that serves `llm`; `app.state.service` is its `Service`."""
    settings = settings or Settings()
    service = Service(llm, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await asyncio.to_thread(service.engine.stop)
        service.tokenizing.shutdown(wait=False)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    _add_errors(app)
    _add_api(app, service)
    _add_page(app, service)
    return app


def _add_errors(app: FastAPI) -> None:
    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), error.status, error.headers())

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        made = ApiError(error.status_code, str(error.detail))
        return JSONResponse(made.body(), made.status, dict(error.headers or {}))

    async def left(_: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody receives it

    async def unknown(_: Request, error: Exception) -> Response:
        made = ApiError(500, f"internal error: {type(error).__name__}")
        return JSONResponse(made.body(), 500)

    app.add_exception_handler(ApiError, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientLeft, left)
    app.add_exception_handler(Exception, unknown)


def _add_api(app: FastAPI, service: Service) -> None:
    name = service.settings.model_name
    card = {"id": name, "object": "model", "created": service.created, "owned_by": "paged_ref"}

    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Any:
        return await service.complete(request, chat=False)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request) -> Any:
        return await service.complete(request, chat=True)

    @app.get("/v1/models", response_model=None)
    async def models(request: Request) -> Response:
        service.authorize(request)
        return JSONResponse({"object": "list", "data": [card]})

    @app.get("/v1/models/{model:path}", response_model=None)
    async def model(request: Request, model: str) -> Response:
        service.authorize(request)
        if model != name:
            raise ApiError(404, f"model {model!r:.80} is not served here", "model", "model_not_found")
        return JSONResponse(card)

    @app.get("/health", response_model=None)
    async def health() -> Response:
        if service.engine.failed or service.draining:
            raise ApiError(503, service.engine.failed or "the server is shutting down", code="unhealthy")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        text = await service.engine.call(service.llm.metrics.prometheus)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI, service: Service) -> None:
    settings, observer = service.settings, service.observer

    def serve_file(path: str, name: str, kind: str) -> None:
        @app.get(path, response_model=None)
        async def file() -> Response:
            return Response((PAGE / name).read_bytes(), media_type=kind, headers=SECURITY)

    for path, (name, kind) in FILES.items():
        serve_file(path, name, kind)

    @app.get("/info", response_model=None)
    async def info() -> Response:
        llm = service.llm
        return JSONResponse(
            {
                "model": settings.model_name,
                "num_blocks": llm.pool.num_blocks,
                "block_size": llm.pool.block_size,
                "max_positions": llm.model.max_positions,
                "chat": getattr(llm.model.tokenizer, "chat_template", None) is not None,
                "needs_key": settings.api_key is not None,
                "show_text": settings.show_text,
            }
        )

    @app.get("/events", response_model=None)
    async def events() -> Any:
        if len(observer.viewers) >= MOST_VIEWERS:
            raise ApiError(429, f"{MOST_VIEWERS} pages are open already", retry_after=30)
        viewer = Viewer(observer, asyncio.get_running_loop())
        observer.viewers.add(viewer)
        service.engine.refresh()
        return EventStream(viewer.frames(), lambda: observer.viewers.discard(viewer))

    @app.post("/control", response_model=None)
    async def control(request: Request) -> Response:
        key = settings.presenter_key
        if key is None or not _has_key(request, "x-presenter-key", key):
            raise ApiError(401, "only the presenter may do this: open the address that the server printed")
        _require_json(request)
        body = json_object(await read_body(request, 1000))
        paused, delay, steps = body.get("paused", False), body.get("delay", 0), body.get("steps", 0)
        if not isinstance(paused, bool) or type(delay) not in (int, float) or type(steps) is not int:
            raise ApiError(400, "send paused (true or false), delay (seconds) and steps (a whole number)")
        if not (0 <= delay <= 10 and 0 <= steps <= 1000):
            raise ApiError(400, "delay must be 0 to 10 seconds, and steps 0 to 1000")
        service.engine.control(paused, float(delay), steps)
        return JSONResponse({"paused": paused, "delay": delay})
