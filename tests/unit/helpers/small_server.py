"""A small server on loopback, in a thread of the test."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread


@contextmanager
def answering(
    page: Callable[[str, str], str], status: int = 200, cert: str = ""
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
            self.end_headers()
            self.wfile.write(page(self.path, given).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert)
            served.socket = context.wrap_socket(served.socket, server_side=True)
        Thread(target=served.serve_forever, daemon=True).start()
        yield f"http{'s' * bool(cert)}://127.0.0.1:{served.server_port}"
        served.shutdown()
