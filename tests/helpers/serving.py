"""A server over the tiny model, in a thread of this process, so that tests can look into its engine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(llm: Any, **settings: Any) -> Iterator[Running]:
    """Serve `llm` on a free port; afterwards no request is left and no block is lost."""
    import uvicorn

    from paged_ref.server.app import Settings, make_app

    app = make_app(llm, Settings(**{"model_name": "tiny"} | settings))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
    )  # small, so that a slow reader is noticed soon
    config = uvicorn.Config(
        app, log_level="warning", lifespan="on", log_config=None, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started, "the server starts")
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", llm, app.state.service)
    finally:
        for viewer in list(app.state.service.observer.viewers):
            viewer.close()
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
    assert not llm.scheduler.has_work
    assert llm.pool.num_used == 0
    llm.pool.check()
    llm.scheduler.check()


class Running:
    """A running server: its address, its engine and its service."""

    def __init__(self, address: str, llm: Any, service: Any) -> None:
        self.address, self.llm, self.service = address, llm, service
        self.port = int(address.rpartition(":")[2])


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)
