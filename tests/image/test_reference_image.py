"""The reference image does what docs/install.md says, from contents to a request."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers import Podman
from vllm_server import START_S, direct, free_port

SHARE = "/opt/vllm/share/vllm-balance"
# The first test also builds the image.
pytestmark = pytest.mark.timeout(2400)
WHO = """
import os, pathlib
print(os.getuid(), os.getgid(), pathlib.Path.home(), os.access(pathlib.Path.home(), 2))
print("libjemalloc" in pathlib.Path("/proc/self/maps").read_text())
"""
REQUEST = {"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="session")
def models(
    podman: Podman, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a tiny model, which the image itself made."""
    folder = tmp_path_factory.mktemp("models")
    os.chown(folder, 1000, 1000)
    make = ("python", "-m", "vllm_balance.reference.tiny_models", "--model", "moe")
    podman.output("--volume", f"{folder}:/models", image, *make, "--out", "/models")
    return folder


@pytest.fixture
def server(podman: Podman, image: str, models: Path) -> Iterator[tuple[str, str]]:
    """The name of a container that serves on two ranks, and its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    name = podman(
        "run",
        "--detach",
        f"--volume={models}:/models:ro",
        f"--env=VLLM_BALANCE_HEALTH={url}/health",
        "--env=HF_HUB_OFFLINE=1",
        "--env=VLLM_NO_USAGE_STATS=1",
        image,
        *("vllm", "serve", "/models/moe", f"--port={port}", "--host=127.0.0.1"),
        *("--api-server-count=1", "--data-parallel-size=2"),
        "--data-parallel-balance=cap",
    )
    yield name, url
    logs = podman.attempt("logs", "--tail", "60", name)
    print(logs.stdout, logs.stderr)
    podman("rm", "--force", name)


def healthy(podman: Podman, name: str) -> bool:
    return podman.attempt("healthcheck", "run", name).returncode == 0


def test_serves_a_request_on_two_ranks(podman, server):
    name, url = server
    assert not healthy(podman, name)
    deadline = time.monotonic() + START_S
    while not healthy(podman, name):
        assert podman.state(name)["Running"]
        assert time.monotonic() < deadline
        time.sleep(1)
    body = {**REQUEST, "model": "/models/moe"}
    answer = direct("POST", f"{url}/v1/completions", json=body, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == REQUEST["max_tokens"]
    metrics = direct("GET", f"{url}/metrics", timeout=60).text
    assert "vllm:dp_balance_decisions_total" in metrics
    # The server is the first process of the container, so it gets the signal.
    podman("stop", "--time", "60", name)
    assert podman.state(name)["ExitCode"] == 0


def test_runs_as_a_user_with_jemalloc_and_without_a_shell(podman, image):
    who, jemalloc = podman.output(image, "python", "-c", WHO).splitlines()
    assert who == "1000 1000 /home/vllm True"
    assert jemalloc == "True"


def test_says_what_it_is(podman, image):
    assert "target" in podman.output(image)
    assert "installed as it was built" in podman.output(image, "vllm-balance", "verify")
    record = json.loads(podman.output(image, "vllm-balance", "info", "--json"))
    labels = json.loads(podman("inspect", "--format", "{{json .Labels}}", image))
    prefix = "org.opencontainers.image"
    assert labels[f"{prefix}.version"] == record["distributions"]["vllm"]
    assert labels[f"{prefix}.revision"].startswith(str(record["commit"] or "unknown"))


def test_lists_every_package_with_its_licence(podman, image):
    listed = podman.output(image, "python", "-m", "pip", "list", "--format=json")
    installed = {package["name"]: package["version"] for package in json.loads(listed)}
    bom: dict[str, Any] = json.loads(
        podman.output(image, "cat", f"{SHARE}/sbom.cdx.json")
    )
    assert bom["bomFormat"] == "CycloneDX"
    named = {part["name"]: part["version"] for part in bom["components"]}
    assert named == installed
    (vllm,) = [part for part in bom["components"] if part["name"] == "vllm"]
    assert vllm["purl"].startswith("pkg:pypi/vllm@")
    assert [file["name"] for file in vllm["pedigree"]["ancestors"]] == ["vllm"]
    assert vllm["pedigree"]["patches"]
    folders = set(podman.output(image, "ls", f"{SHARE}/licences").splitlines())
    without = podman.output(image, "cat", f"{SHARE}/licences/without-text.txt")
    names = {line.split()[0] for line in without.splitlines()}
    assert folders - {"without-text.txt"} == set(installed) - names
    assert "vllm" in folders


def test_has_nothing_that_only_the_build_needs(podman, image):
    names = ("*.whl", "install-*.sh", "pip.conf", "cyclonedx*")
    wanted = " -o ".join(f"-name '{name}'" for name in names)
    search = f"find / -xdev \\( {wanted} -o -name sbom.cdx.json \\) 2>/dev/null; true"
    found = podman.output(image, "sh", "-c", search).splitlines()
    assert found == [f"{SHARE}/sbom.cdx.json"]
