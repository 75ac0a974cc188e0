"""Bare Debian roots: what a newcomer does in them, and the reference image on one.

Needs root, podman, runc and mmdebstrap; `.ci/run` says when it cannot have them.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from balance_tools.distribution import Choice
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.upstream import pip_config
from balance_tools.wheel.build import build_wheel
from containers import Podman, make_podman

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("mmdebstrap", "podman", "runc")
BARE = "localhost/bare-debian"
PIP_CERT = "/etc/pip-cert.pem"
SPACE_GB = 16
"""Free disk that the build needs: 14 GB were seen, most of it copies of PyTorch."""


def pytest_sessionstart() -> None:
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0:
        lacking.insert(0, "the rights of root")
    if lacking:
        raise pytest.UsageError(
            f"tests/image: expected {', '.join(lacking)}, found none; run "
            f"`apt-get install {' '.join(PROGRAMS)}` and this again, as root"
        )
    folder = tempfile.gettempdir()
    free_gb = shutil.disk_usage(folder).free // 10**9
    if free_gb < SPACE_GB:
        raise pytest.UsageError(
            f"tests/image: expected {SPACE_GB} GB free in {folder}, found {free_gb}; "
            "make room, or set TMPDIR to a folder of a larger disk"
        )


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """An engine that knows no image; all that it makes is removed at the end."""
    folder = tmp_path_factory.mktemp("podman")
    podman = make_podman(folder)
    yield podman
    podman("rm", "--all", "--force")
    podman("rmi", "--all", "--force")
    remove_tree(folder)


@pytest.fixture(scope="session")
def debian(
    podman: Podman, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Make an image of a Debian release: its essential packages, apt, and those named.

    Nothing else is in it.
    """

    def make(suite: str, *packages: str) -> str:
        archive = tmp_path_factory.mktemp(suite) / "root.tar"
        command = ["mmdebstrap", "--quiet", "--variant=minbase"]
        command += [f"--include={','.join(packages)}"] if packages else []
        subprocess.run([*command, suite, str(archive)], check=True)
        podman("import", "--quiet", str(archive), name := f"{BARE}-{suite}")
        archive.unlink()
        return name

    return make


@pytest.fixture(scope="session")
def pip_settings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A file with the settings that this machine's pip needs, and volumes for them."""
    settings = tmp_path_factory.mktemp("pip") / "pip.conf"
    return settings, settings_for_pip(pip_config.pip_settings(), settings)


@pytest.fixture(scope="session")
def image(
    podman: Podman, debian: Callable[..., str], pip_settings: tuple[Path, list[str]]
) -> str:
    """The image, built with the options that this machine's pip needs."""
    paths = Paths(ROOT)
    wheel = build_wheel(paths, Choice(), paths.dist)
    settings, volumes = pip_settings
    options = ["--secret", f"id=pip,src={settings}", *volumes]
    # One layer a stage: those between cost a minute and are never used again.
    script, built = ROOT / "docker" / "build.sh", f"dist/{wheel.name}"
    result = subprocess.run(
        [script, built, "--layers=false", *options],
        env={**podman.variables, "ENGINE": "podman", "BASE": debian("bookworm")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout.splitlines()[-1]


def settings_for_pip(config: pip_config.PipSettings, settings: Path) -> list[str]:
    """Write what this machine's pip is configured to use to the file `settings`.

    Returns:
        Options that mount the folders and the file that it names.
    """
    values = {"timeout": str(int(config.timeout))}
    sources, options = config.sources, config.options
    for source in sources:
        known = values.get(source.setting, "")
        values[source.setting] = f"{known} {source.location}".strip()
    folders = set()
    for source in sources:
        if urlsplit(source.location).scheme not in {"http", "https"}:
            folder = pip_config.local_path(source.location)
            # The pages of an index link to files beside its folder.
            folders.add(folder if source.setting == "find-links" else folder.parent)
    volumes = [f"{folder}:{folder}" for folder in folders]
    names = options.keys() & {"proxy", "trusted-host"}
    values |= {name: options[name] for name in sorted(names)}
    if "cert" in options:
        # Not where it lies here: a package of Debian writes there.
        values["cert"] = PIP_CERT
        volumes.append(f"{options['cert']}:{PIP_CERT}")
    lines = [f"{name} = {value}" for name, value in values.items()]
    settings.write_text("\n".join(["[global]", *lines, ""]))
    return [f"--volume={volume}:ro" for volume in volumes]
