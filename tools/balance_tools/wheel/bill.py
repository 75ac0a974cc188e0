"""The bill of materials in a wheel (PEP 770), in CycloneDX.

It says what the wheel carries, not what it requires: upstream's packages with the
files that they come from, our patches of them as pedigree, the kernels, and our own
code. The same sources always give the same text: no time and no random number.
"""

from __future__ import annotations

import hashlib
import uuid

from cyclonedx.model import (
    AttachedText,
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import (
    Component,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.model.issue import IssueClassification, IssueType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from balance_tools.series import patchfile
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import Artifact
from balance_tools.wheel.plan import GUARD, PLUGIN, WheelPlan
from balance_tools.wheel.upstream_metadata import values_of

FOLDER = "sboms"
"""Below the dist-info of the wheel."""
BILL = "vllm.cdx.json"
OURS_LICENCE = "Apache-2.0"


def bill_of(plan: WheelPlan) -> Bom:
    """The bill of one wheel."""
    whole = _component(plan.settings.name, plan.version, plan.target.license)
    whole.bom_ref.value = "wheel"
    whole.description = plan.settings.summary
    parts = [_upstream(plan, package) for package in plan.target.packages]
    parts.append(_component(GUARD, plan.version, OURS_LICENCE))
    bom = Bom(components=parts)
    bom.metadata.component = whole
    bom.register_dependency(whole, parts)
    return settle(bom)


def settle(bom: Bom) -> Bom:
    """Replace the serial number, which is random, by one that the content gives."""
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.serial_number = uuid.UUID(int=0)
    digest = hashlib.sha256(text_of(bom).encode()).hexdigest()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, digest)
    return bom


def text_of(bom: Bom) -> str:
    """The document: CycloneDX 1.6, in JSON."""
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string(indent=1) + "\n"


def _upstream(plan: WheelPlan, package: str) -> Component:
    """One package of upstream's as it is in the wheel: patched, with kernels."""
    upstream, sdist = plan.upstreams[package], plan.lock.packages[package]
    own = (values_of(upstream, "License-Expression") or [plan.target.license])[0]
    part = _component(sdist.project, plan.version_of(package), own)
    series = load_series(plan.paths.patches(package))
    part.pedigree = Pedigree(
        ancestors=[_file(sdist, own)], patches=map(_patch, series.patches)
    )
    for line in values_of(upstream, "Project-URL"):
        kind, _, url = line.partition(", ")
        if kind == "Homepage":
            reference = ExternalReference(
                type=ExternalReferenceType.WEBSITE, url=XsUri(url)
            )
            part.external_references.add(reference)
    if package == PLUGIN and plan.kernels and plan.kernels.wheel:
        part.components.add(_file(plan.kernels.wheel, own))
    return part


def _component(name: str, version: str, licence: str) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=purl,
        bom_ref=purl.to_string(),
        licenses=[LicenseExpression(licence)],
    )


def _file(artifact: Artifact, licence: str) -> Component:
    """One file of the lock."""
    part = _component(artifact.project, artifact.version, licence)
    qualifiers = {"file_name": artifact.filename}
    name = artifact.project
    part.purl = PackageURL("pypi", None, name, artifact.version, qualifiers)
    part.bom_ref.value = artifact.filename
    part.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=artifact.sha256))
    return part


def _patch(patch: patchfile.Patch) -> Patch:
    """One patch of a series, whole, with its name and what it is for."""
    said = (patch.header.get("Description") or "").partition("\n")[0]
    issue = IssueType(
        type=IssueClassification.ENHANCEMENT, name=patch.name, description=said
    )
    text = AttachedText(content=patch.raw.decode("utf-8"))
    return Patch(
        type=PatchClassification.UNOFFICIAL, diff=Diff(text=text), resolves=[issue]
    )
