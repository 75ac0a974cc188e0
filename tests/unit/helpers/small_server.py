"""A small server on loopback, in a thread of the test."""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import MappingProxyType


@contextmanager
def answering(
    page: Callable[[str, str], str],
    status: int = 200,
    headers: Mapping[str, str] = MappingProxyType({}),
    cert: str = "",
) -> Iterator[str]:
    """A server on loopback, as its address; of TLS with a file of key and certificate.

    `page` gets the path and the credentials, or what was posted.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(self.headers.get("Authorization", ""))

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self._answer(self.rfile.read(length).decode())

        def _answer(self, given: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            text = page(self.path, given)
            self.wfile.write(text.encode(errors="surrogateescape"))

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert)
            served.socket = context.wrap_socket(served.socket, server_side=True)
        Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http{'s' * bool(cert)}://127.0.0.1:{served.server_port}"
        served.shutdown()
