"""What stands in tests for an embedding model and for servers on the loopback address."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import lancelot


class FixedEmbedder(lancelot.EndpointEmbedder):
    """Gives a text its vector of `meanings`, and any other text the `usual` one."""

    meanings: Mapping[str, tuple[float, ...]] = {}
    usual: tuple[float, ...] = (1.0, 0.0)

    @property
    def available(self) -> bool:
        return True

    def embed(self, texts: Any, *, model: str | None = None) -> list[tuple[float, ...]]:
        return [self.meanings.get(text, self.usual) for text in texts]


class Handler(BaseHTTPRequestHandler):
    """Reads a request of any method and writes the reply that the server's `reply` gives; it logs nothing."""

    server: "LoopbackServer"
    body = b""

    def handle_request(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, body = self.server.reply(self)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = handle_request  # noqa: N815 - the names that the server looks for

    def log_message(self, *_: Any) -> None:
        pass


Reply = tuple[int, Mapping[str, str], bytes]
JSON = {"Content-Type": "application/json"}


class LoopbackServer(ThreadingHTTPServer):
    """A server on a free port whose replies are made by a function of the request."""

    daemon_threads = True

    def __init__(self, reply: Callable[[Handler], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = reply

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def serving(reply: Callable[[Handler], Reply]) -> Iterator[LoopbackServer]:
    """A server that runs until the block ends."""
    with LoopbackServer(reply) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
