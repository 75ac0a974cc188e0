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

    The VEX is a document of its own, for scanners take it apart from the bill; it names
    what it is about by the bill's serial number. Those that take OpenVEX know the wheel
    by its purl.
    """
    address = purl(plan.settings.name, plan.version)
    as_of = f"{plan.advisories.as_of}T00:00:00Z"
    whole = _component(plan.settings.name, plan.version, plan.target.license)
    whole |= {"bom-ref": "wheel", "description": plan.settings.summary}
    parts = [_upstream(plan, package) for package in plan.target.packages]
    parts.append(_component(GUARD, plan.version, OURS_LICENCE))
    refs = [part["bom-ref"] for part in parts]
    bill = _cyclone_dx(
        metadata={"component": whole},
        components=parts,
        dependencies=[{"ref": "wheel", "dependsOn": refs}],
    )
    serial = bill["serialNumber"].replace("urn:uuid:", "urn:cdx:")
    target = {"ref": f"{serial}/{bill['version']}#{quote(address, safe='')}"}
    vulnerabilities = [
        _vulnerability(one) | {"affects": [target]} for one in plan.judged
    ]
    vex = _cyclone_dx(metadata={"timestamp": as_of}, vulnerabilities=vulnerabilities)
    products = [{"@id": address}]
    statements = [_statement(one) | {"products": products} for one in plan.judged]
    open_vex = {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"urn:uuid:{_uuid(statements)}",
        "author": GUARD,
        "timestamp": as_of,
        "version": 1,
        "statements": statements,
    }
    made = {BILL: bill, VEX: vex, OPEN_VEX: open_vex}
    return {name: json.dumps(made[name], indent=1) + "\n" for name in made}


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
    own = (values_of(upstream, "License-Expression") or [plan.target.license])[0]
    part = _component(sdist.project, plan.version_of(package), own)
    series = load_series(plan.paths.patches(package))
    part["pedigree"] = {
        "ancestors": [_file(sdist, own)],
        "patches": [_patch(patch) for patch in series.patches],
    }
    for line in values_of(upstream, "Project-URL"):
        kind, _, url = line.partition(", ")
        if kind == "Homepage":
            part["externalReferences"] = [{"type": "website", "url": url}]
    if package == PLUGIN and plan.kernels and plan.kernels.wheel:
        part["components"] = [_file(plan.kernels.wheel, own)]
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


def _in_words(each: Judged, number: int) -> tuple[Advisory, str, Document, str]:
    """An advisory, its state in CycloneDX (0) or OpenVEX (1), why, and more of it."""
    one, state, why = each.advisory, IN_WORDS[each.status][number], {}
    if each.status is Status.OPEN and not one.workaround:
        state = UNKNOWN[number]
    if each.status is Status.NOT_AFFECTED:
        why = {"justification": (ABSENT if one.lacks else UNUSED)[number]}
    fails = " fails without the patch" * (each.status is Status.FIXED)
    return one, state, why, each.detail + fails


def _vulnerability(each: Judged) -> Document:
    one, state, why, detail = _in_words(each, 0)
    known = state == "exploitable"
    response = {"response": ["workaround_available"]} if known else {}
    return {
        "bom-ref": one.id,
        "id": one.cve or one.id,
        **({} if one.cve else {"source": _source(one.id)}),
        "references": [{"id": one.id, "source": _source(one.id)}],
        "ratings": [{"severity": one.severity.split()[0]}],
        "description": one.what,
        "analysis": {"state": state, "detail": detail, **why, **response},
        **({"workaround": one.workaround} if known else {}),
    }


def _statement(each: Judged) -> Document:
    one, status, why, detail = _in_words(each, 1)
    about = {"@id": ADVISORY.format(one.id), "name": one.cve or one.id}
    about["description"] = one.what
    return {
        "vulnerability": about | ({"aliases": [one.id]} if one.cve else {}),
        "status": status,
        **why,
        "action_statement" if status == "affected" else "status_notes": detail,
    }
