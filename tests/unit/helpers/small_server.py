"""A small server on loopback, in a thread of the test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread


@contextmanager
def answering(page: Callable[[str, str], str], status: int = 200) -> Iterator[str]:
    """A server on loopback, as its address; `page` gets path and credentials."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            found = page(self.path, self.headers.get("Authorization", ""))
            self.wfile.write(found.encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
