"""The bill of an image says of our packages what the wheel's own bill says."""

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from conftest import HERE, ROOT, VERSION

SCRIPT = ROOT / "docker" / "sbom.py"


@pytest.fixture
def environment(bare, build):
    bare.install(build(HERE))
    return bare


def listing(*names):
    """A bill as the program lists an environment: of a local file no address."""
    parts = [{"type": "library", "name": name, "bom-ref": name} for name in names]
    return json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": parts}
    )


def test_the_bill_of_an_image_gets_what_the_wheel_says(environment, tmp_path):
    path = tmp_path / "sbom.cdx.json"
    path.write_text(listing("pip", "vllm", "vllm-ascend", "vllm-balance"))
    environment.run("python", str(SCRIPT), str(path))
    text = path.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    parts = {part["name"]: part for part in bill["components"]}
    assert parts["pip"] == {"type": "library", "name": "pip", "bom-ref": "pip"}
    assert parts["vllm"]["bom-ref"] == "vllm"
    assert parts["vllm"]["purl"] == ADDRESS
    assert parts["vllm"]["pedigree"]["patches"]
    assert parts["vllm-ascend"]["components"][0]["hashes"]
    said = {one["bom-ref"]: one["affects"] for one in bill["vulnerabilities"]}
    assert said["GHSA-rwxx-mrjm-wc2m"] == [{"ref": "vllm"}]


def test_a_bill_of_another_environment_is_refused(environment, tmp_path):
    path = tmp_path / "sbom.cdx.json"
    path.write_text(before := listing("pip", "vllm"))
    ended = environment.run("python", str(SCRIPT), str(path), check=False)
    assert ended.returncode == 1
    assert "found no vllm-ascend, vllm-balance" in ended.stderr
    assert path.read_text() == before


ADDRESS = f"pkg:pypi/vllm@{VERSION}.a2".replace("+", "%2B")
