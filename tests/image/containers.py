"""A container engine of the tests' own: podman, with its images in one folder."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# runc: the machine may have both versions of control groups. The limits: podman's own
# want more rights than root has on some machines. No systemd, so no journal.
CONTAINERS = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""


@dataclass(frozen=True)
class Podman:
    """podman, configured by its variables and by nothing of the machine's."""

    variables: Mapping[str, str]
    """The environment that it is run in."""

    def __call__(self, *arguments: str) -> str:
        """What a command of podman prints, without the last line break."""
        result = self.attempt(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.rstrip("\n")

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *arguments], env=self.variables, capture_output=True, text=True
        )

    def state(self, name: str) -> dict[str, Any]:
        """How a container is: `Running`, `ExitCode` and so on."""
        found: dict[str, Any] = json.loads(
            self("inspect", "--format", "{{json .State}}", name)
        )
        return found

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a container to its end, without a terminal, and remove it.

        Not attached: without systemd, this podman notices the end 20 seconds late.
        """
        name = self("run", "--detach", "--no-healthcheck", *arguments)
        while (state := self.state(name))["Running"]:
            time.sleep(0.2)
        logs = self.attempt("logs", name)
        self("rm", name)
        return subprocess.CompletedProcess(
            arguments, state["ExitCode"], logs.stdout, logs.stderr
        )

    def output(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.rstrip("\n")


def make_podman(folder: Path) -> Podman:
    temporary = folder / "tmp"
    temporary.mkdir()
    containers = folder / "containers.conf"
    storage = folder / "storage.conf"
    containers.write_text(CONTAINERS)
    storage.write_text(STORAGE.format(folder=folder))
    return Podman(
        {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_CONF": str(containers),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "TMPDIR": str(temporary),
        }
    )
