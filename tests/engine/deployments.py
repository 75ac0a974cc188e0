"""The command lines that the files below deploy/ start, and those of their page."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PRINT_ARGUMENTS = (
    "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
)


def kubernetes(variant: str, host: int, folder: Path, **changed: str) -> list[str]:
    """What a pod's container tells `vllm` by a real shell, some variables changed."""
    path = DEPLOY / "kubernetes" / variant / f"{variant}.yaml"
    spec = yaml.safe_load(path.read_text())["spec"]
    given = {
        "status.podIP": f"10.0.0.{1 + host}",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(host),
        "metadata.name": f"second-vllm-{host}",
    }
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    if variant == "leaderworkerset":
        group = spec["leaderWorkerTemplate"]
        template = group["workerTemplate" if host else "leaderTemplate"]
        environment |= {
            "LWS_GROUP_SIZE": str(group["size"]),
            "LWS_WORKER_INDEX": str(host),
            "LWS_LEADER_ADDRESS": "vllm-0.vllm.default",
        }
    else:
        template = spec["template"]
    (container,) = template["spec"]["containers"]
    for variable in container["env"]:
        source: dict[str, Any] = variable.get("valueFrom", {})
        field = source.get("fieldRef", {}).get("fieldPath")
        environment[variable["name"]] = given[field] if field else variable["value"]
    environment |= changed
    program = folder / "vllm"
    program.write_text(PRINT_ARGUMENTS)
    program.chmod(0o755)
    printed = subprocess.run(
        container["args"], env=environment, capture_output=True, check=True
    ).stdout
    arguments: list[str] = json.loads(printed)
    return arguments


def variables(folder: str) -> dict[str, str]:
    """What the patch of a kustomization says of the container's variables."""
    path = DEPLOY / "kubernetes" / folder / "kustomization.yaml"
    (patch,) = yaml.safe_load(path.read_text())["patches"]
    template = yaml.safe_load(patch["patch"])["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def systemd(unit: str, instance: str) -> list[str]:
    """The arguments of `vllm` that a unit starts, with the settings of vllm.env."""
    settings = {}
    for line in (DEPLOY / "systemd/vllm.env").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, settings[name] = line.partition("=")
    text = (DEPLOY / "systemd" / unit).read_text().replace("\\\n", " ")
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    words = []
    for word in start.replace("%i", instance).split():
        if whole := re.fullmatch(r"\$\{(\w+)\}", word):  # one word
            words.append(settings[whole[1]])
        elif split := re.fullmatch(r"\$(\w+)", word):  # as many as it has
            words += settings[split[1]].split()
        else:
            words.append(word)
    return words[words.index("/opt/vllm/bin/vllm") + 1 :]


def documented() -> Iterator[tuple[str, list[str]]]:
    """The page, and the arguments of `vllm`, of every `vllm serve` in a console."""
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.search(r"\bvllm (serve .*)", line):
                    command = re.split(r" 2>| \| ", match[1])[0]
                    yield page.name, shlex.split(command, comments=True)
