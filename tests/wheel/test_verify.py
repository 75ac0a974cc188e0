"""What is installed says what it is: by `verify`, and in the bill of an image.

`vllm-balance verify` finds whatever is not as it was built, and says what to do.
"""

import json
import os
import shutil
from collections.abc import Iterator

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from conftest import HERE, ROOT, VERSION, Build
from environments import Environment, make_environment

PLUGIN_VERSION = f"{VERSION}.a2".replace("+", ".post1+")
SCRIPT = ROOT / "docker" / "sbom.py"


@pytest.fixture(scope="module")
def pristine(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the Ascend wheel, to be left as it is."""
    environment = make_environment(tmp_path_factory.mktemp("verify") / "env")
    environment.install(build(HERE), compiled=True)
    return environment


@pytest.fixture
def tampered(pristine: Environment) -> Iterator[Environment]:
    """The same, to be spoilt: the packages are put back afterwards.

    The copies are links, so a test that changes a file must replace it.
    """
    packages = pristine.packages
    saved = pristine.folder.parent / "saved"
    shutil.copytree(packages, saved, symlinks=True, copy_function=os.link)
    yield pristine
    shutil.rmtree(packages)
    saved.rename(packages)


def test_ascend_wheel_is_three_distributions(pristine):
    versions = pristine.python_says(
        "from importlib.metadata import version as v;"
        "print(v('vllm'), v('vllm-ascend'), v('vllm_ascend'))"
    )
    assert versions == f"{VERSION}.a2 {PLUGIN_VERSION} {PLUGIN_VERSION}"
    words = ("install", "--no-deps", "--no-index", "vllm-ascend>=0.23.0")
    assert "Requirement already satisfied" in pristine.pip(*words).stdout
    assert "installed as it was built" in pristine.run("vllm-balance", "verify").stdout


def findings(environment: Environment) -> list[str]:
    """The lines of a verification that fails."""
    result = environment.run("vllm-balance", "verify", check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all("; repair: " in line for line in lines), lines
    return lines


def test_intact_when_byte_code_was_written_or_cleaned(tampered):
    module = tampered.packages / "vllm" / "envs.py"
    tampered.run("python", "-O", "-m", "py_compile", str(module))
    assert list((module.parent / "__pycache__").glob("envs.*.opt-1.pyc"))
    cache = tampered.packages / "vllm_balance" / "__pycache__"
    shutil.rmtree(cache)
    tampered.run("vllm-balance", "verify")


def test_each_file_that_is_modified_missing_or_foreign_is_named(tampered):
    packages = tampered.packages
    wrong = {"vllm/envs.py": "modified", "vllm/py.typed": "missing"}
    foreign = ("vllm/extra.py", "vllm_ascend/x.so", "vllm/__pycache__/a.cpython-1.pyc")
    content = (packages / "vllm/envs.py").read_bytes()
    for name in wrong:
        (packages / name).unlink()
    (packages / "vllm/envs.py").write_bytes(content + b"\n")
    for name in foreign:
        (packages / name).touch()
    said = dict(line.split(": ", 1) for line in findings(tampered))
    for name, found in wrong.items():
        line = said.pop(str(packages / name))
        assert f"found {found}" in line
        assert f"pip install --force-reinstall --no-deps vllm-{VERSION}.a2-" in line
    for name in foreign:
        path = str(packages / name)
        assert said.pop(path).endswith(f"rm '{path}'")
    assert said == {}


def listing(*names):
    """A bill as the program lists an environment: of a local file no address."""
    parts = [{"type": "library", "name": name, "bom-ref": name} for name in names]
    return json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": parts}
    )


def test_the_bill_of_an_image_gets_what_the_wheel_says(pristine, tmp_path):
    path = tmp_path / "sbom.cdx.json"
    path.write_text(listing("pip", "vllm", "vllm-ascend", "vllm-balance"))
    pristine.run("python", str(SCRIPT), str(path))
    text = path.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    parts = {part["name"]: part for part in bill["components"]}
    assert parts["pip"] == {"type": "library", "name": "pip", "bom-ref": "pip"}
    assert parts["vllm"]["bom-ref"] == "vllm"
    assert parts["vllm"]["purl"] == f"pkg:pypi/vllm@{VERSION}.a2".replace("+", "%2B")
    assert parts["vllm"]["pedigree"]["patches"]
    assert parts["vllm-ascend"]["components"][0]["hashes"]
    said = {one["bom-ref"]: one["affects"] for one in bill["vulnerabilities"]}
    assert said["GHSA-rwxx-mrjm-wc2m"] == [{"ref": "vllm"}]


def test_a_bill_of_another_environment_is_refused(pristine, tmp_path):
    path = tmp_path / "sbom.cdx.json"
    path.write_text(before := listing("pip", "vllm"))
    ended = pristine.run("python", str(SCRIPT), str(path), check=False)
    assert ended.returncode == 1
    assert "found no vllm-ascend, vllm-balance" in ended.stderr
    assert path.read_text() == before
