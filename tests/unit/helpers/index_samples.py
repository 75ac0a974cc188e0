"""A package index for tests: small sdists and wheels, served by a real HTTP server."""

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from balance_tools.upstream.lock import Artifact, release_of


def make_sdist(top, files):
    return make_tar([file_member(f"{top}/{path}", files[path]) for path in files])


Member = tuple[tarfile.TarInfo, bytes]


def file_member(name, content):
    data = content.encode() if isinstance(content, str) else content
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info, data


def special_member(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info, b""


def make_tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def make_wheel(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return buffer.getvalue()


def artifact_of(filename, data):
    release = release_of(filename)
    assert release is not None
    sha256 = hashlib.sha256(data).hexdigest()
    return Artifact(release[0], str(release[1]), filename, sha256, len(data))


@dataclass
class Fault:
    """How the server fails once for a file."""

    status: int | None = None
    """Answer with this status and no body."""
    send: int | None = None
    """Send only so many bytes of the body, then close or stall."""
    stall: threading.Event | None = None
    """Wait for this before closing."""


@dataclass
class Request:
    path: str
    login: str | None


@dataclass
class SampleIndex:
    """A simple index on 127.0.0.1; pages list the files added so far."""

    content_type: str = "text/html; charset=utf-8"
    """Of its pages."""
    hashes: bool = True
    """Say the sha256 on the page."""
    files: dict[str, bytes] = field(default_factory=dict)
    yanked: dict[str, str] = field(default_factory=dict)
    """For each file name that was yanked: why."""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    """For each file name: what goes wrong with the next requests, in order."""
    requests: list[Request] = field(default_factory=list)
    served: threading.Event = field(default_factory=threading.Event)
    """Set whenever a part of a body was sent before a stall."""

    def __post_init__(self):
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                index.answer(self)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        ).start()

    @property
    def port(self):
        return self._server.server_port

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/simple"

    def stop(self):
        self._server.shutdown()
        self._server.server_close()

    def add(self, filename, data):
        self.files[filename] = data
        return artifact_of(filename, data)

    def downloads(self, filename):
        return [r for r in self.requests if r.path == f"/files/{filename}"]

    def answer(self, handler):
        headers = handler.headers
        self.requests.append(Request(handler.path, headers["Authorization"]))
        _, kind, name, *_ = handler.path.split("/")
        if kind == "files":
            self._send_file(handler, name)
        else:
            self._send(handler, self.page(name), self.content_type)

    def page(self, project):
        links = ""
        for name, data in self.files.items():
            release = release_of(name)
            if release is not None and release[0] == project:
                sha256 = hashlib.sha256(data).hexdigest()
                place = f"{name}#sha256={sha256}" if self.hashes else name
                reason = self.yanked.get(name)
                yanked = f' data-yanked="{reason}"' if reason is not None else ""
                links += f'<a href="../../files/{place}"{yanked}>{name}</a>'
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def _send_file(self, handler, name):
        faults = self.faults.get(name, [])
        fault = faults.pop(0) if faults else Fault()
        if fault.status is not None:
            handler.send_error(fault.status)
            return
        self._send(handler, self.files[name], "application/gzip", fault.send)
        if fault.stall is not None:
            self.served.set()
            fault.stall.wait()

    def _send(self, handler, body, kind, most=None):
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:most])
        handler.wfile.flush()
