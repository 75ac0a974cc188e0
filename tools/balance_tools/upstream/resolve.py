"""Make a lock: look versions up on the indexes that pip is configured to use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from packaging.version import InvalidVersion, Version

from balance_tools.errors import ToolError
from balance_tools.upstream.index import Index, Link, SourceError
from balance_tools.upstream.lock import Artifact, Lock

ARCHITECTURES = ("x86_64", "aarch64")


def resolve(vllm: str, ascend: str, index: Index) -> Lock:
    """The lock for these versions of vllm and vllm-ascend.

    The kernel wheels are those of `ascend` itself or else of the release that it is a
    post-release of; when neither has any, the lock has no kernels.
    """
    of_vllm, of_ascend = _version("vllm", vllm), _version("vllm-ascend", ascend)
    vllm_links = all_links(index, "vllm")
    ascend_links = all_links(index, "vllm-ascend")
    sources = Lock(
        vllm=_sdist(index, vllm_links, "vllm", of_vllm),
        vllm_ascend=_sdist(index, ascend_links, "vllm-ascend", of_ascend),
    )
    ends = tuple(f"_{arch}.whl" for arch in ARCHITECTURES)
    wheels = [link for link in ascend_links if link.filename.endswith(ends)]
    for version in (of_ascend, Version(of_ascend.base_version)):
        fit = [link for link in wheels if link.release[1] == version]
        if fit:
            fit.sort(key=lambda link: link.filename)
            return replace(
                sources,
                kernel_sdist=_sdist(index, ascend_links, "vllm-ascend", version),
                kernel_wheels=tuple(artifact_of_link(index, link) for link in fit),
            )
    return sources


def all_links(index: Index, project: str) -> list[Link]:
    """Every file of a project; of one name, the first source's."""
    by_name: dict[str, Link] = {}
    for source in index.sources:
        try:
            links = index.links(source, project)
        except SourceError as problem:
            raise ToolError(
                f"{source}: expected the files of {project}, found that {problem}; "
                "check the network and `pip config list`"
            ) from problem
        by_name = {link.filename: link for link in links} | by_name
    return list(by_name.values())


def _version(project: str, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise ToolError(
            f"{project}: expected a version, found {text!r}; write it as in 0.23.0"
        ) from None


def _sdist(
    index: Index, links: Sequence[Link], project: str, version: Version
) -> Artifact:
    sdists = {
        link.release[1]: link for link in links if link.filename.endswith(".tar.gz")
    }
    if version in sdists:
        link = sdists[version]
        if link.yanked is not None:
            raise ToolError(
                f"{project} {version}: expected a release that stands, found that it "
                f"was yanked ({link.yanked or 'no reason given'}); take another, or "
                f"give its archive with --{'' if project == 'vllm' else 'ascend-'}sdist"
            )
        return artifact_of_link(index, link)
    newest = ", ".join(map(str, sorted(filter(None, sdists))[-5:])) or "none"
    raise ToolError(
        f"{project} {version}: expected an sdist on pip's configured sources, found "
        f"none; the newest sdists are {newest}"
    )


def artifact_of_link(index: Index, link: Link) -> Artifact:
    """The lock's entry for a link, which is downloaded if its hash is not known."""
    size, sha256 = link.size, link.sha256
    try:
        if size is None or sha256 is None:
            with index.open(link.url) as (size, chunks):
                if size is None or sha256 is None:
                    size, digest = 0, hashlib.sha256()
                    for chunk in chunks:
                        size += len(chunk)
                        digest.update(chunk)
                    sha256 = digest.hexdigest()
    except SourceError as problem:
        raise ToolError(
            f"{link.filename}: expected its size from {link.source}, found that "
            f"{problem}; check the network and run this again"
        ) from problem
    project, version = link.release
    return Artifact(project, str(version), link.filename, sha256, size)
