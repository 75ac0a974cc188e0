"""The bill of an image says of our packages what the wheel's own bill says.

What programs of others make of an installed wheel is what SECURITY.md says of them.
"""

import json
import shutil
import subprocess
import threading
import venv
from http.server import BaseHTTPRequestHandler, HTTPServer

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
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
CYCLONEDX = "cyclonedx-bom==7.5.0"
AUDIT, CDXGEN, OPENVEX = "pip-audit==2.10.1", "cdxgen@12.8.4", "vexipy==0.3.0"


@pytest.fixture
def programs(tmp_path):
    """A folder with programs of others, from their index."""

    def install(requirement):
        venv.create(tmp_path / "others", with_pip=True)
        bin_ = tmp_path / "others" / "bin"
        words = [bin_ / "python", "-m", "pip", "install", "--quiet", requirement]
        subprocess.run(words, check=True)
        return bin_

    return install


def said_of_vllm(path):
    """What a bill says of the wheel, without all else that it lists."""
    parts = json.loads(path.read_text())["components"]
    (found,) = (part for part in parts if part["name"] == "vllm")
    assert found["version"] == f"{VERSION}.a2"
    assert "pedigree" not in found, "the wheel's own bill was not read"
    return found


@pytest.mark.slow
def test_cyclonedx_py_lists_the_wheel_without_an_address(
    environment, programs, tmp_path
):
    assert "cyclonedx-py `environment` (cyclonedx-bom 7.5.0)" in PAGE
    listed = (ROOT / "docker" / "requirements-sbom.txt").read_text()
    assert CYCLONEDX in listed, "the same as of images"
    out = tmp_path / "bill.json"
    program = programs(CYCLONEDX) / "cyclonedx-py"
    words = [program, "environment", "--output-file", out, environment.python]
    subprocess.run(words, check=True)
    assert "purl" not in said_of_vllm(out)


@pytest.mark.slow
def test_cdxgen_lists_the_wheel_with_a_bare_plus(environment, tmp_path):
    assert "cdxgen 12.8.4 `-t python`" in PAGE
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    npm = ["npm", "install", "--prefix", tmp_path, "--omit=optional", "--silent"]
    subprocess.run([*npm, f"@cyclonedx/{CDXGEN}"], check=True)
    out = tmp_path / "bill.json"
    program = tmp_path / "node_modules" / ".bin" / "cdxgen"
    words = [program, "-t", "python", "--no-install-deps", "-o", out]
    subprocess.run([*words, environment.folder], check=True, capture_output=True)
    assert said_of_vllm(out)["purl"] == ADDRESS.replace("%2B", "+")


@pytest.mark.slow
def test_pip_audit_asks_for_the_local_version_as_it_is(environment, programs):
    assert "pip-audit 2.10.1 `-s osv`" in PAGE
    asked = []

    class Database(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            asked.append(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Database) as database:
        threading.Thread(target=database.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{database.server_port}/v1/query"
        words = ["-s", "osv", "--osv-url", url, "--path", environment.packages]
        subprocess.run([programs(AUDIT) / "pip-audit", *words], check=True)
        database.shutdown()
    package = {"name": "vllm", "ecosystem": "PyPI"}
    assert {"package": package, "version": f"{VERSION}.a2"} in asked


@pytest.mark.slow
def test_a_reader_of_openvex_takes_what_the_wheel_has(environment, programs):
    (path,) = environment.packages.glob("vllm-*.dist-info/sboms/vllm.openvex.json")
    code = "import sys, vexipy; "
    code += "print(len(vexipy.Document.from_json(open(sys.argv[1]).read()).statements))"
    words = [programs(OPENVEX) / "python", "-c", code, path]
    read = subprocess.check_output(words, text=True)
    assert int(read) == len(json.loads(path.read_text())["statements"])
