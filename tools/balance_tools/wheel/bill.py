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
    AdvisoryState,
    Answer,
)
from balance_tools.series import patchfile
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import Artifact
from balance_tools.wheel.plan import GUARD, PLUGIN, WheelPlan
from balance_tools.wheel.upstream_metadata import values_of

Document = dict[str, Any]

FOLDER = "sboms"
"""The folder of the documents below the dist-info of the wheel."""
BILL, VEX, OPEN_VEX = "vllm.cdx.json", "vllm.vex.cdx.json", "vllm.openvex.json"
OURS_LICENCE = "Apache-2.0"
SOURCE = "GitHub Advisories"


def documents_of(plan: WheelPlan) -> dict[str, str]:
    """By name: the text of each document of a wheel."""
    bill = bill_of(plan)
    made = {BILL: bill, VEX: vex_of(plan, bill), OPEN_VEX: open_vex_of(plan)}
    return {name: json.dumps(made[name], indent=1) + "\n" for name in made}


def bill_of(plan: WheelPlan) -> Document:
    """The bill of one wheel."""
    whole = _component(plan.settings.name, plan.version, plan.target.license)
    whole |= {"bom-ref": "wheel", "description": plan.settings.summary}
    parts = [_upstream(plan, package) for package in plan.target.packages]
    parts.append(_component(GUARD, plan.version, OURS_LICENCE))
    refs = [part["bom-ref"] for part in parts]
    return _cyclone_dx(
        metadata={"component": whole},
        components=parts,
        dependencies=[{"ref": "wheel", "dependsOn": refs}],
    )


def vex_of(plan: WheelPlan, bill: Document) -> Document:
    """What holds in the wheel of a bill, as of the day when the table was gathered.

    A document of its own, for scanners take it apart from the bill; it names what it
    is about by the bill's serial number.
    """
    serial = bill["serialNumber"].replace("urn:uuid:", "urn:cdx:")
    ref = quote(purl(plan.settings.name, plan.version), safe="")
    targets = [{"ref": f"{serial}/{bill['version']}#{ref}"}]
    return _cyclone_dx(
        metadata={"timestamp": f"{plan.advisories.gathered}T00:00:00Z"},
        vulnerabilities=[_said(one) | {"affects": targets} for one in plan.answers],
    )


def open_vex_of(plan: WheelPlan) -> Document:
    """The same for scanners that take OpenVEX: they know the wheel by its purl."""
    products = [{"@id": purl(plan.settings.name, plan.version)}]
    statements = [_statement(one) | {"products": products} for one in plan.answers]
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"urn:uuid:{_uuid(statements)}",
        "author": GUARD,
        "timestamp": f"{plan.advisories.gathered}T00:00:00Z",
        "version": 1,
        "statements": statements,
    }


def purl(name: str, version: str) -> str:
    """The address of a package of Python."""
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
    urls = (line.partition(", ") for line in values_of(upstream, "Project-URL"))
    websites = [
        {"type": "website", "url": u} for kind, _, u in urls if kind == "Homepage"
    ]
    if websites:
        part["externalReferences"] = websites
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
    said = (patch.header.get("Description") or "").partition("\n")[0]
    fixed = [
        {"type": "security", "id": name, "source": _source(name)}
        for name in patch.header.advisories
    ]
    text = {"contentType": "text/plain", "content": patch.raw.decode("utf-8")}
    purpose = {"type": "enhancement", "name": patch.name, "description": said}
    resolves = [purpose, *fixed]
    return {"type": "unofficial", "diff": {"text": text}, "resolves": resolves}


def _source(advisory: str) -> Document:
    return {"name": SOURCE, "url": ADVISORY.format(advisory)}


IN_WORDS = {
    AdvisoryState.OPEN: ("exploitable", "affected"),
    AdvisoryState.FIXED: ("resolved_with_pedigree", "fixed"),
    AdvisoryState.NOT_AFFECTED: ("not_affected", "not_affected"),
    AdvisoryState.UPSTREAM: ("resolved", "fixed"),
}
"""By state: how CycloneDX and OpenVEX call it."""
UNKNOWN = ("in_triage", "under_investigation")
ABSENT = ("code_not_present", "vulnerable_code_not_present")
UNUSED = ("code_not_reachable", "vulnerable_code_not_in_execute_path")


def _judged(answer: Answer, number: int) -> tuple[Advisory, str, Document, str]:
    """An advisory, its state in CycloneDX (0) or OpenVEX (1), why, and more of it."""
    one, state, why = answer.advisory, IN_WORDS[answer.state][number], {}
    if answer.state is AdvisoryState.OPEN and not one.workaround:
        state = UNKNOWN[number]
    if answer.state is AdvisoryState.NOT_AFFECTED:
        why = {"justification": (ABSENT if one.lacks else UNUSED)[number]}
    fails = " fails without the patch" * (answer.state is AdvisoryState.FIXED)
    return one, state, why, answer.text + fails


def _said(answer: Answer) -> Document:
    one, state, why, detail = _judged(answer, 0)
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


def _statement(answer: Answer) -> Document:
    one, status, why, detail = _judged(answer, 1)
    about = {"@id": ADVISORY.format(one.id), "name": one.cve or one.id}
    about["description"] = one.what
    return {
        "vulnerability": about | ({"aliases": [one.id]} if one.cve else {}),
        "status": status,
        **why,
        "action_statement" if status == "affected" else "status_notes": detail,
    }
