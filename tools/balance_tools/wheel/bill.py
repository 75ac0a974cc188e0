"""The bill of materials in a wheel (PEP 770), and its VEX, both in CycloneDX.

The bill says what the wheel carries, not what it requires: upstream's packages with
the files that they come from, our patches of them as pedigree, the kernels, and our own
code. The VEX says of each published vulnerability what holds in this wheel. The same
sources always give the same text: no time of a build and no random number.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime, time, timezone
from urllib.parse import quote

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
from cyclonedx.model.impact_analysis import (
    ImpactAnalysisJustification,
    ImpactAnalysisResponse,
    ImpactAnalysisState,
)
from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource
from cyclonedx.model.license import LicenseExpression
from cyclonedx.model.vulnerability import (
    BomTarget,
    Vulnerability,
    VulnerabilityAnalysis,
    VulnerabilityRating,
    VulnerabilityReference,
    VulnerabilitySeverity,
    VulnerabilitySource,
)
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from balance_tools.advisories.table import ADVISORY, AdvisoryState, Answer
from balance_tools.series import patchfile
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import Artifact
from balance_tools.wheel.plan import GUARD, PLUGIN, WheelPlan
from balance_tools.wheel.upstream_metadata import values_of

FOLDER = "sboms"
"""The folder of the bill below the dist-info of the wheel."""
BILL, VEX = "vllm.cdx.json", "vllm.vex.cdx.json"
OURS_LICENCE = "Apache-2.0"
SOURCE = "GitHub Advisories"


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
    return _settled(bom)


def vex_of(plan: WheelPlan, bill: Bom) -> Bom:
    """What holds in the wheel of a bill, as of the day when the table was gathered.

    A document of its own, for scanners take it apart from the bill; it names what it
    is about by the bill's serial number.
    """
    (vllm,) = (part for part in bill.components if part.name == plan.settings.name)
    ref = quote(str(vllm.bom_ref.value), safe="")
    target = f"urn:cdx:{bill.serial_number}/{bill.version}#{ref}"
    bom = Bom(vulnerabilities=[_vulnerability(one, target) for one in plan.answers])
    day = datetime.combine(plan.advisories.gathered, time(), timezone.utc)
    return _settled(bom, day)


def _settled(bom: Bom, day: datetime | None = None) -> Bom:
    """The bill with a serial number from its content, not a random one."""
    bom.metadata.timestamp = day  # type: ignore[assignment]
    bom.serial_number = uuid.UUID(int=0)
    digest = hashlib.sha256(text_of(bom).encode()).hexdigest()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, digest)
    return bom


def text_of(bom: Bom) -> str:
    """The document: CycloneDX 1.6, in JSON."""
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string(indent=1) + "\n"


def _upstream(plan: WheelPlan, package: str) -> Component:
    """The component for one package of upstream in the wheel: patched, with kernels."""
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
    """The component for one file of the lock."""
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
    mended = [
        IssueType(
            type=IssueClassification.SECURITY,
            id=name,
            source=IssueTypeSource(name=SOURCE, url=XsUri(ADVISORY.format(name))),
        )
        for name in patch.header.advisories
    ]
    text = AttachedText(content=patch.raw.decode("utf-8"))
    return Patch(
        type=PatchClassification.UNOFFICIAL,
        diff=Diff(text=text),
        resolves=[issue, *mended],
    )


ANALYSES = {
    AdvisoryState.OPEN: ImpactAnalysisState.EXPLOITABLE,
    AdvisoryState.MENDED: ImpactAnalysisState.RESOLVED_WITH_PEDIGREE,
    AdvisoryState.NOT_AFFECTED: ImpactAnalysisState.NOT_AFFECTED,
    AdvisoryState.UPSTREAM: ImpactAnalysisState.RESOLVED,
}


def _vulnerability(answer: Answer, target: str) -> Vulnerability:
    """One advisory, by its CVE where it has one."""
    one, state = answer.advisory, answer.state
    fails = " fails without the patch" * (state is AdvisoryState.MENDED)
    analysis = VulnerabilityAnalysis(state=ANALYSES[state], detail=answer.text + fails)
    if state is AdvisoryState.OPEN and one.workaround:
        analysis.responses.add(ImpactAnalysisResponse.WORKAROUND_AVAILABLE)
    elif state is AdvisoryState.OPEN:
        analysis.state = ImpactAnalysisState.IN_TRIAGE
    elif state is AdvisoryState.NOT_AFFECTED:
        why = ImpactAnalysisJustification
        absent = bool(one.lacks)
        analysis.justification = (
            why.CODE_NOT_PRESENT if absent else why.CODE_NOT_REACHABLE
        )
    list_of = VulnerabilitySource(name=SOURCE, url=XsUri(ADVISORY.format(one.id)))
    severity = VulnerabilitySeverity(one.severity.split()[0])
    return Vulnerability(
        id=one.cve or one.id,
        bom_ref=one.id,
        source=None if one.cve else list_of,
        references=[VulnerabilityReference(id=one.id, source=list_of)],
        ratings=[VulnerabilityRating(severity=severity)],
        description=one.what,
        workaround=one.workaround if state is AdvisoryState.OPEN else None,
        analysis=analysis,
        affects=[BomTarget(ref=target)],
    )
