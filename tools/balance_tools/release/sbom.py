"""The bill of materials of a release, in CycloneDX: what is in each wheel, with hashes.

Read from the finished wheels and the lock, not from what the build meant to do.
"""

from __future__ import annotations

import email
import json
import zipfile
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from email.message import Message
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from balance_tools.files import sha256_of
from balance_tools.paths import Paths
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import Artifact, Lock
from vllm_balance.build_info import BuildInfo
from vllm_balance.fingerprint import PACKAGES


def read_wheel(wheel: Path) -> tuple[BuildInfo, Message]:
    """What a finished wheel says of itself: its build.json, its own METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        record = json.loads(archive.read("vllm_balance/build.json"))
        (name,) = [
            name
            for name in archive.namelist()
            if name.endswith(".dist-info/METADATA") and name.count("/") == 1
        ]
        return BuildInfo(**record), email.message_from_bytes(archive.read(name))


def render_sbom(
    version: str,
    time_s: int,
    wheels: Sequence[Path],
    sdist: Path,
    paths: Paths,
    lock: Lock,
) -> str:
    """The text of the bill; the same files give the same text.

    `wheels` and `sdist` are the files of the release `version`, whose commit was made
    at `time_s`, in seconds since 1970: no time of a build is in a release.
    """
    files = (*wheels, sdist)
    whole = "\n".join(map(sha256_of, files))
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, whole))
    bom.metadata.timestamp = datetime.fromtimestamp(time_s, tz=timezone.utc)
    release = _component("vllm-balance", version, kind=ComponentType.APPLICATION)
    bom.metadata.component = release
    known = {sdist.name: _component(sdist.name, version, sha256=sha256_of(sdist))}
    for path in wheels:
        info, metadata = read_wheel(path)
        parts = list(_parts(info, metadata, paths, lock))
        for part in parts:
            known.setdefault(part.name + str(part.version), part)
        known[path.name] = wheel = _component(
            path.name, metadata["Version"], sha256=sha256_of(path)
        )
        wheel.licenses.add(LicenseExpression(metadata["License-Expression"]))
        wheel.properties.add(Property(name="commit", value=str(info.commit)))
        inside = [known[part.name + str(part.version)] for part in parts]
        bom.register_dependency(wheel, inside)
    bom.components.update(known.values())
    bom.register_dependency(release, [known[path.name] for path in files])
    maker = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return maker.output_as_string(indent=1) + "\n"


def _parts(
    info: BuildInfo, metadata: Message, paths: Paths, lock: Lock
) -> Iterable[Component]:
    """What a wheel is made of: upstream's files, patches, and what pip adds to it."""
    upstreams = set(map(canonicalize_name, info.upstreams))
    for package in PACKAGES:
        if canonicalize_name(package) not in upstreams:
            continue
        yield _artifact(lock.packages[package])
        for patch in load_series(paths.patches(package)).patches:
            sha256 = sha256_of(paths.patches(package) / patch.name)
            yield _component(f"patches/{package}/{patch.name}", sha256=sha256)
    for artifact in lock.kernel_wheels:
        if artifact.filename == info.kernel_wheel:
            yield _artifact(artifact)
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if "extra ==" not in str(requirement.marker):
            name = canonicalize_name(requirement.name)
            yield _component(line, purl=PackageURL("pypi", None, name))


def _artifact(artifact: Artifact) -> Component:
    name, version, sha256 = artifact.project, artifact.version, artifact.sha256
    purl = PackageURL("pypi", None, name, version, {"file_name": artifact.filename})
    return _component(artifact.filename, version, sha256=sha256, purl=purl)


def _component(
    name: str,
    version: str | None = None,
    *,
    sha256: str | None = None,
    purl: PackageURL | None = None,
    kind: ComponentType = ComponentType.FILE,
) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else []
    return Component(
        name=name, version=version, type=kind, bom_ref=name, hashes=hashes, purl=purl
    )
