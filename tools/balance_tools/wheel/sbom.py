"""The bill of materials in a wheel (PEP 770), and its VEX, in CycloneDX and OpenVEX.

The bill says what the wheel carries, not what it requires: upstream's packages with
the files that they come from, our patches of them as pedigree, the kernels, and our own
code. The VEX says of each published vulnerability what holds in this wheel. The same
sources always give the same text: no time of a build and no random number.
"""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import quote

from balance_tools.advisories.table import (
    ADVISORY,
    Advisory,
    Judged,
    Status,
)
from balance_tools.series import patchfile
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import Artifact
from balance_tools.wheel.plan import GUARD, PLUGIN, WheelPlan
from balance_tools.wheel.upstream_metadata import values_of

Document = dict[str, Any]

FOLDER = "sboms"
BILL, VEX, OPEN_VEX = "vllm.cdx.json", "vllm.vex.cdx.json", "vllm.openvex.json"
OURS_LICENCE = "Apache-2.0"
SOURCE = "GitHub Advisories"


def documents_of(plan: WheelPlan) -> dict[str, str]:
    """By file name the text of each.

    The VEX is a separate document, because scanners take it apart from the bill; it
    refers to the bill by its serial number. OpenVEX refers to the wheel by its purl.
    """
    address = purl(plan.settings.name, plan.version)
    as_of = f"{plan.advisories.as_of}T00:00:00Z"
    wheel = _component(plan.settings.name, plan.version, plan.target.license)
    wheel |= {"bom-ref": "wheel", "description": plan.settings.summary}
    parts = [_upstream(plan, package) for package in plan.target.packages]
    parts.append(_component(GUARD, plan.version, OURS_LICENCE))
    refs = [part["bom-ref"] for part in parts]
    bill = _cyclone_dx(
        metadata={"component": wheel},
        components=parts,
        dependencies=[{"ref": "wheel", "dependsOn": refs}],
    )
    serial = bill["serialNumber"].replace("urn:uuid:", "urn:cdx:")
    target = {"ref": f"{serial}/{bill['version']}#{quote(address, safe='')}"}
    vulnerabilities = [
        _vulnerability(judged) | {"affects": [target]} for judged in plan.judged
    ]
    vex = _cyclone_dx(metadata={"timestamp": as_of}, vulnerabilities=vulnerabilities)
    products = [{"@id": address}]
    statements = [_statement(judged) | {"products": products} for judged in plan.judged]
    open_vex = {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"urn:uuid:{_uuid(statements)}",
        "author": GUARD,
        "timestamp": as_of,
        "version": 1,
        "statements": statements,
    }
    documents = {BILL: bill, VEX: vex, OPEN_VEX: open_vex}
    return {name: json.dumps(documents[name], indent=1) + "\n" for name in documents}


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{quote(version, safe='')}"


def _cyclone_dx(**parts: object) -> Document:
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{_uuid(parts)}",
        "version": 1,
        **parts,
    }


def _uuid(content: object) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content))


def _upstream(plan: WheelPlan, package: str) -> Document:
    upstream, sdist = plan.upstreams[package], plan.lock.packages[package]
    licence = (values_of(upstream, "License-Expression") or [plan.target.license])[0]
    part = _component(sdist.project, plan.version_of(package), licence)
    series = load_series(plan.paths.patches(package))
    part["pedigree"] = {
        "ancestors": [_file(sdist, licence)],
        "patches": [_patch(patch) for patch in series.patches],
    }
    for line in values_of(upstream, "Project-URL"):
        kind, _, url = line.partition(", ")
        if kind == "Homepage":
            part["externalReferences"] = [{"type": "website", "url": url}]
    if package == PLUGIN and plan.kernels and plan.kernels.wheel:
        part["components"] = [_file(plan.kernels.wheel, licence)]
    return part


def _component(name: str, version: str, licence: str) -> Document:
    return {
        "type": "library",
        "bom-ref": purl(name, version),
        "name": name,
        "version": version,
        "purl": purl(name, version),
        "licenses": [{"expression": licence}],
    }


def _file(artifact: Artifact, licence: str) -> Document:
    part = _component(artifact.project, artifact.version, licence)
    name = quote(artifact.filename, safe="")
    part |= {"bom-ref": artifact.filename, "purl": f"{part['purl']}?file_name={name}"}
    return part | {"hashes": [{"alg": "SHA-256", "content": artifact.sha256}]}


def _patch(patch: patchfile.Patch) -> Document:
    purpose = (patch.header.get("Description") or "").partition("\n")[0]
    text = {"contentType": "text/plain", "content": patch.raw.decode("utf-8")}
    return {
        "type": "unofficial",
        "diff": {"text": text},
        "resolves": [
            {"type": "enhancement", "name": patch.name, "description": purpose},
            *(
                {"type": "security", "id": name, "source": _source(name)}
                for name in patch.header.advisories
            ),
        ],
    }


def _source(advisory: str) -> Document:
    return {"name": SOURCE, "url": ADVISORY.format(advisory)}


IN_WORDS = {
    Status.OPEN: ("exploitable", "affected"),
    Status.FIXED: ("resolved_with_pedigree", "fixed"),
    Status.NOT_AFFECTED: ("not_affected", "not_affected"),
    Status.UPSTREAM: ("resolved", "fixed"),
}
UNKNOWN = ("in_triage", "under_investigation")
ABSENT = ("code_not_present", "vulnerable_code_not_present")
UNUSED = ("code_not_reachable", "vulnerable_code_not_in_execute_path")


def _in_words(judged: Judged, number: int) -> tuple[Advisory, str, Document, str]:
    """An advisory, its state in CycloneDX (0) or OpenVEX (1), why, and more of it."""
    advisory, state, reason = judged.advisory, IN_WORDS[judged.status][number], {}
    if judged.status is Status.OPEN and not advisory.workaround:
        state = UNKNOWN[number]
    if judged.status is Status.NOT_AFFECTED:
        reason = {"justification": (ABSENT if advisory.lacks else UNUSED)[number]}
    fails = " fails without the patch" * (judged.status is Status.FIXED)
    return advisory, state, reason, judged.detail + fails


def _vulnerability(judged: Judged) -> Document:
    advisory, state, reason, detail = _in_words(judged, 0)
    is_exploitable = state == "exploitable"
    response = {"response": ["workaround_available"]} if is_exploitable else {}
    return {
        "bom-ref": advisory.id,
        "id": advisory.cve or advisory.id,
        **({} if advisory.cve else {"source": _source(advisory.id)}),
        "references": [{"id": advisory.id, "source": _source(advisory.id)}],
        "ratings": [{"severity": advisory.severity.split()[0]}],
        "description": advisory.what,
        "analysis": {"state": state, "detail": detail, **reason, **response},
        **({"workaround": advisory.workaround} if is_exploitable else {}),
    }


def _statement(judged: Judged) -> Document:
    advisory, status, reason, detail = _in_words(judged, 1)
    about = {"@id": ADVISORY.format(advisory.id), "name": advisory.cve or advisory.id}
    about["description"] = advisory.what
    return {
        "vulnerability": about | ({"aliases": [advisory.id]} if advisory.cve else {}),
        "status": status,
        **reason,
        "action_statement" if status == "affected" else "status_notes": detail,
    }
