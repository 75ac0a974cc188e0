"""The bill of materials of a release, in CycloneDX: what is in each wheel, with hashes.

Read from the finished wheels and the lock, not from what the build meant to do.
"""

from __future__ import annotations

import email
import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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

SCHEMA = SchemaVersion.V1_6


@dataclass(frozen=True)
class Content:
    """What a finished wheel says of itself."""

    path: Path
    info: BuildInfo
    """Its build.json."""
    metadata: Message
    """That of its own dist-info; those beside it only require it."""

    @classmethod
    def read(cls, wheel: Path) -> Content:
        """Read the record and the metadata of a wheel."""
        with zipfile.ZipFile(wheel) as archive:
            record = json.loads(archive.read("vllm_balance/build.json"))
            (name,) = [
                name
                for name in archive.namelist()
                if name.endswith(".dist-info/METADATA") and name.count("/") == 1
            ]
            metadata = email.message_from_bytes(archive.read(name))
        return cls(wheel, BuildInfo(**record), metadata)

    def has(self, package: str) -> bool:
        """Whether it is made of that vendored package, however upstream spells it."""
        upstreams = map(canonicalize_name, self.info.upstreams)
        return canonicalize_name(package) in upstreams


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
    contents = [Content.read(path) for path in wheels]
    whole = "\n".join(sha256_of(path) for path in (*wheels, sdist))
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, whole))
    bom.metadata.timestamp = datetime.fromtimestamp(time_s, tz=timezone.utc)
    release = Component(
        name="vllm-balance",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="release",
    )
    bom.metadata.component = release
    known: dict[str, Component] = {}
    for content in contents:
        parts = [*_upstream(content, lock), *_patches(content, paths)]
        parts += _requirements(content)
        for part in parts:
            known.setdefault(str(part.bom_ref.value), part)
        wheel = _wheel(content)
        known[content.path.name] = wheel
        bom.register_dependency(
            wheel, [known[str(part.bom_ref.value)] for part in parts]
        )
    known[sdist.name] = _file(sdist, version, "our own files, no source of upstream")
    for component in known.values():
        bom.components.add(component)
    files = [known[path.name] for path in (*wheels, sdist)]
    bom.register_dependency(release, files)
    text = make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=1)
    return text + "\n"


def _wheel(content: Content) -> Component:
    metadata = content.metadata
    return Component(
        name=metadata["Name"],
        version=metadata["Version"],
        type=ComponentType.LIBRARY,
        bom_ref=content.path.name,
        description=metadata["Summary"],
        licenses=[LicenseExpression(metadata["License-Expression"])],
        hashes=_hashes(sha256_of(content.path)),
        properties=[
            Property(name="vllm-balance:file", value=content.path.name),
            Property(name="vllm-balance:commit", value=str(content.info.commit)),
            Property(name="vllm-balance:lock", value=content.info.lock_sha256),
        ],
    )


def _upstream(content: Content, lock: Lock) -> Iterable[Component]:
    """The sdists that a wheel's packages are from, and the wheel of its kernels."""
    for package, artifact in lock.packages.items():
        if content.has(package):
            yield _artifact(artifact, "source, patched")
    for artifact in lock.kernel_wheels:
        if artifact.filename == content.info.kernel_wheel:
            yield _artifact(artifact, "compiled kernels")


def _artifact(artifact: Artifact, use: str) -> Component:
    return Component(
        name=artifact.project,
        version=artifact.version,
        bom_ref=artifact.filename,
        description=f"{use}: {artifact.filename}",
        hashes=_hashes(artifact.sha256),
        purl=PackageURL(
            "pypi",
            None,
            artifact.project,
            artifact.version,
            {"file_name": artifact.filename},
        ),
    )


def _patches(content: Content, paths: Paths) -> Iterable[Component]:
    for package in PACKAGES:
        if content.has(package):
            for patch in load_series(paths.patches(package)).patches:
                path = paths.patches(package) / patch.name
                name = f"patches/{package}/{patch.name}"
                yield _file(path, None, patch.header.get("Description"), name)


def _requirements(content: Content) -> Iterable[Component]:
    """What pip adds, as the wheel asks for it: no version is chosen yet."""
    for line in content.metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if "extra ==" in str(requirement.marker):
            continue
        name = canonicalize_name(requirement.name)
        yield Component(
            name=name,
            bom_ref=f"{content.info.target} requires {line}",
            purl=PackageURL("pypi", None, name),
            properties=[Property(name="vllm-balance:requirement", value=line)],
        )


def _file(
    path: Path, version: str | None, description: str | None, name: str | None = None
) -> Component:
    return Component(
        name=name or path.name,
        version=version,
        type=ComponentType.FILE,
        bom_ref=name or path.name,
        description=description,
        hashes=_hashes(sha256_of(path)),
    )


def _hashes(sha256: str) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
