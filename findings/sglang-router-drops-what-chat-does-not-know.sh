#!/usr/bin/env bash
# sglang-router 0.3.2 before a server of another kind: fields that it does not know are passed on for
# /v1/completions and dropped for /v1/chat/completions, structured_outputs and priority among them.
# Headers that it does not know are dropped for both, X-data-parallel-rank among them. Status 200.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install -qq sglang-router==0.3.2
env/bin/pip list 2>/dev/null | grep '^sglang-router'

cat >server.py <<'PYTHON'
"""Answer as an engine does, and print what the router has sent."""

import http.server
import json


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"status": "ok", "model_path": "m", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kept = [name for name in ("structured_outputs", "priority", "ignore_eos") if name in body]
        limit = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
        rank = "X-data-parallel-rank" in self.headers, "X-Request-Id" in self.headers
        with open("seen", "a") as file:
            print(self.path, *kept, *limit, "rank, request id:", *rank, file=file)
        text = {"text": "x", "message": {"role": "assistant", "content": "x"}}
        choice = {"index": 0, "finish_reason": "stop", **text}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.answer({"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
                    | {"choices": [choice], "usage": usage})


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
open("port", "w").write(str(server.server_port))
server.serve_forever()
PYTHON

cat >ask.py <<'PYTHON'
"""Start the router before the server, send one request to each path, and show what arrives."""

import json
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


server = subprocess.Popen([sys.executable, "server.py"])
port, router = free_port(), None
try:
    while not (pathlib.Path("port").exists() and pathlib.Path("port").read_text()):
        time.sleep(0.05)
    router = subprocess.Popen(
        [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", port]
        + ["--prometheus-port", free_port(), "--policy", "round_robin", "--worker-urls"]
        + [f"http://127.0.0.1:{pathlib.Path('port').read_text()}"],
        stdout=open("router.log", "w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    extra = {"structured_outputs": {"regex": "x"}, "priority": 1, "ignore_eos": True}
    for path, prompt in (
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("completions", {"prompt": "x"}),
    ):
        body = json.dumps({"model": "m", "max_tokens": 3, **prompt, **extra}).encode()
        headers = {"Content-Type": "application/json"}
        headers |= {"X-data-parallel-rank": "1", "X-Request-Id": "one"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/{path}", body, headers)
        for attempt in range(300):
            try:
                urllib.request.urlopen(request).read()
                break
            except OSError:  # not there yet, or without a worker yet
                if attempt == 299 or router.poll() is not None:
                    raise SystemExit(open("router.log").read())
                time.sleep(0.1)
finally:
    for process in (router, server):
        if process:
            process.terminate()
            process.wait()
PYTHON
env/bin/python ask.py
cat seen
[ "$(cat seen)" = "/v1/chat/completions ignore_eos max_completion_tokens rank, request id: False True
/v1/completions structured_outputs priority ignore_eos max_tokens rank, request id: False True" ]
