"""uvicorn around the application: it prints the addresses, and SIGTERM or Ctrl-C drains it."""

from __future__ import annotations

import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

log = logging.getLogger("paged_ref")
MOST_CONNECTIONS = 2000


class Server(uvicorn.Server):
    """uvicorn's server, which tells the application at the first signal."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal ends at once."""
        log.info("finishing the running requests; a second signal ends at once")
        self.config.app.state.service.drain()  # type: ignore[union-attr]
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(app: FastAPI, host: str, port: int, drain_seconds: int) -> int:
    """Serve until a signal; return the exit status.

    Raises:
        ValueError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ValueError(f"cannot listen on {host} port {port}: {error}") from error
    address = f"http://[{host}]" if ":" in host else f"http://{host}"
    address += f":{listener.getsockname()[1]}"
    settings = app.state.service.settings
    log.info("API        %s/v1", address)
    log.info("page       %s/", address)
    if settings.presenter_key:
        log.info("presenter  %s/#presenter=%s", address, settings.presenter_key)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="on", timeout_keep_alive=30,
        timeout_graceful_shutdown=drain_seconds, limit_concurrency=MOST_CONNECTIONS, log_config=None,
    )  # fmt: skip
    with listener:
        Server(config).run(sockets=[listener])
    return 0
