"""PageServer: the page over HTTP, from the standard library. Owns sockets, threads and their bounds; knows no cache.

At most `MOST_CONNECTIONS` at a time, each with a time limit; one more is closed at once. GET and HEAD only, no bodies.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from quire.core.records.errors import InputError, say
from quire.viewer.page_routes import Reply

MOST_CONNECTIONS = 16
PATIENCE = 15.0  # seconds that a connection may be silent
Answer = Callable[[str, str, str], Reply]


class PageServer(ThreadingHTTPServer):
    """Listens when it is made, answers once it is started."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, answer: Answer, hosts: tuple[str, ...] | None) -> None:
        self.answer, self.hosts = answer, hosts
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), PageHandler)
        except (OSError, OverflowError) as error:
            raise InputError(say(f"a page at {host}:{port}", str(error), "give a free port of this machine")) from None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="quire-page", daemon=True)

    def server_bind(self) -> None:
        """Without asking for the name of the address, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def start(self) -> None:
        """Answer from now on, in threads of its own."""
        self._thread.start()

    def stop(self) -> None:
        """No more answers; open connections are closed."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in list(self._open):
            _shut(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """One connection; without a place it is closed."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In a thread of its own."""
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left, or sent no HTTP: nothing to say."""


class PageHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        """A path of the page."""
        self._reply(self._answer(), body=True)

    def do_HEAD(self) -> None:
        """The same without its body."""
        self._reply(self._answer(), body=False)

    def _answer(self) -> Reply:
        if self.headers.get("content-length", "0") != "0" or self.headers.get("transfer-encoding"):
            self.close_connection = True  # its body is not read
        hosts = self.server.hosts
        if hosts is not None and _host_name(self.headers.get("host", "")) not in hosts:
            self.close_connection = True
            return Reply(403, b'{"error":{"message":"the Host header names none of this page\'s names"}}')
        path, _, query = self.path.partition("?")
        return self.server.answer(path, query, self.headers.get("authorization", ""))

    def _reply(self, reply: Reply, body: bool) -> None:
        self.send_response(reply.status)
        for name, value in {**reply.headers, "content-type": reply.kind}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(reply.body)))
        self.end_headers()
        if body:
            self.wfile.write(reply.body)

    def version_string(self) -> str:
        """What it is, not which version."""
        return "quire"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


def _host_name(header: str) -> str:
    text = header.lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)
