"""The provenance of a release: which commit and lock, and which files came of them.

A statement of in-toto with the predicate of SLSA 1.0. It is not signed itself:
SHA256SUMS covers it, and that is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from balance_tools.files import sha256_of
from balance_tools.upstream.lock import Artifact, Lock

NAME = "provenance.intoto.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:vllm-balance:make-release"


def render_provenance(
    version: str, commit: str | None, files: Iterable[Path], lock: Lock
) -> str:
    """The text of the statement; the same commit gives the same text.

    Args:
        version: Of the release, `0.23.0+balance.1`.
        commit: What was built; None for a trial with changes that are in no commit.
        files: Those of the release that were built.
        lock: Names the upstream files that went in.
    """
    source = {"uri": "git+vllm-balance", "digest": {"gitCommit": commit or "unknown"}}
    artifacts = [lock.vllm, lock.vllm_ascend, lock.kernel_sdist, *lock.kernel_wheels]
    used = [_upstream(artifact) for artifact in artifacts if artifact is not None]
    statement = {
        "_type": STATEMENT,
        "subject": [
            {"name": path.name, "digest": {"sha256": sha256_of(path)}}
            for path in sorted(files)
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"command": "make release", "version": version},
                "resolvedDependencies": [source, *used],
            },
            # Whoever signs SHA256SUMS says who built it; the bytes do not depend on it.
            "runDetails": {"builder": {"id": BUILD_TYPE}},
        },
    }
    return json.dumps(statement, indent=1) + "\n"


def _upstream(artifact: Artifact) -> dict[str, Any]:
    return {"name": artifact.filename, "digest": {"sha256": artifact.sha256}}
