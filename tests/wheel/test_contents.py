"""What is in each wheel: all of upstream, our additions, nothing else."""

import email
import json
import re
import struct
import zipfile
from email.message import Message
from pathlib import Path
from urllib.parse import quote

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from balance_tools.advisories.table import load_advisories
from balance_tools.distribution import Choice
from balance_tools.fingerprint import series_sha256
from balance_tools.kernels.prebuilt import fetch_kernels
from balance_tools.series.apply import load_series
from balance_tools.series.fixed import patched_in
from balance_tools.upstream.lock import load_lock
from balance_tools.wheel.sbom import BILL, OPEN_VEX, VEX
from conftest import ASCEND, HERE, ROOT, VERSION, Build

EVERY = [
    Choice(),
    HERE,
    # A release is inspected with them.
    *(pytest.param(c, marks=pytest.mark.slow) for c in ASCEND if c != HERE),
]
MACHINES = {"x86_64": 62, "aarch64": 183}
AI_CORE = 0x1029


@pytest.fixture(params=EVERY, ids=lambda choice: choice.name)
def choice(request):
    return request.param


@pytest.fixture
def archive(choice: Choice, build: Build) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(choice))


def packages(choice: Choice) -> list[str]:
    return ["vllm"] if choice.target == "reference" else ["vllm", "vllm_ascend"]


def metadata_of(archive: zipfile.ZipFile) -> tuple[str, Message]:
    """The folder of the first dist-info, and what its METADATA says."""
    (name,) = [n for n in archive.namelist() if n.count("/") == 1 and "METADATA" in n]
    folder = name.removesuffix("METADATA")
    return folder, email.message_from_bytes(archive.read(name))


def test_has_every_file_that_upstream_has(choice, archive, paths):
    lock = load_lock(paths.lock)
    for package in packages(choice):
        artifact = lock.packages[package]
        pristine = paths.pristine / f"{artifact.project}-{artifact.version}"
        patched = set(load_series(paths.patches(package)).paths)
        upstream = [
            path.relative_to(pristine).as_posix()
            for path in (pristine / package).rglob("*")
            # A hidden file only keeps an empty folder in git.
            if path.is_file()
            and not path.name.startswith(".")
            and "__pycache__" not in path.parts
        ]
        assert len(upstream) > 400
        assert set(upstream) <= set(archive.namelist())
        changed = {
            name
            for name in upstream
            if archive.read(name) != (pristine / name).read_bytes()
        }
        assert changed == patched & set(upstream)


def test_has_nothing_that_nobody_asked_for(choice, archive):
    tops = {name.split("/")[0] for name in archive.namelist()}
    version = parse_wheel_filename(Path(archive.filename or "").name)[1]
    info = f"vllm-{version}.dist-info"
    assert tops == {*packages(choice), "vllm_balance", info, f"vllm-{version}.data"}
    assert not [n for n in archive.namelist() if "__pycache__" in n or "/." in n]
    has_platform = "vllm_balance/reference/__init__.py" in archive.namelist()
    assert has_platform == (choice.target == "reference")


def test_scripts_can_be_executed_and_nothing_depends_on_a_umask(archive):
    modes = {i.filename: i.external_attr >> 16 & 0o777 for i in archive.infolist()}
    assert modes["vllm/utils/numa_wrapper.sh"] == 0o755
    assert modes["vllm/envs.py"] == 0o644
    # The one file that setuptools writes straight into the archive.
    (record,) = [name for name in modes if name.count("/") == 1 and "RECORD" in name]
    del modes[record]
    assert set(modes.values()) == {0o644, 0o755}


def test_the_tag_is_that_of_the_kernels(choice, build):
    name, version, _, tags = parse_wheel_filename(build(choice).name)
    (tag,) = tags
    assert name == "vllm"
    if choice.target == "reference":
        assert (str(tag), str(version)) == ("py3-none-any", f"{VERSION}.reference")
    else:
        assert str(version) == f"{VERSION}.a2"
        assert tag.interpreter == tag.abi == choice.python
        assert tag.platform == f"manylinux_2_34_{choice.arch}"


def test_every_binary_is_for_the_machine_of_the_tag(choice, archive):
    host, device = set(), set()
    for name in archive.namelist():
        header = archive.open(name).read(20)
        if header.startswith(b"\x7fELF"):
            (machine,) = struct.unpack_from("<H", header, 18)
            on_device = machine == AI_CORE or "aicpu_kernel" in name
            (device if on_device else host).add((Path(name).suffix, machine))
    if choice.target == "reference":
        assert host == device == set()
    else:
        assert host == {(".so", MACHINES[choice.arch])}
        assert device == {(".o", AI_CORE), (".so", MACHINES["aarch64"])}


def test_has_every_compiled_file_of_the_kernel_wheel(choice, archive, paths):
    if choice.target == "reference":
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        return
    lock = load_lock(paths.lock)
    kernels = fetch_kernels(paths, lock, choice.python, choice.arch)
    with zipfile.ZipFile(kernels.path) as upstream:
        names = {
            name
            for name in upstream.namelist()
            if name.startswith("vllm_ascend/") and not name.endswith(("/", ".gitkeep"))
        }
        assert names <= set(archive.namelist())
        compiled = {n for n in names if not n.endswith(".py") or "_cann_ops" in n}
        for name in compiled | {"vllm_ascend/_build_info.py"}:
            assert archive.read(name) == upstream.read(name), name


def test_licences_are_named_and_there(choice, archive):
    folder, metadata = metadata_of(archive)
    named = metadata.get_all("License-File")
    expected = ["LICENSE", "NOTICE", "vllm/LICENSE"]
    if choice.target == "ascend":
        expected += ["vllm_ascend/LICENSE", "vllm_ascend/LICENSE.CANN-2.0"]
    assert named == expected
    texts = {f: archive.read(f"{folder}licenses/{f}").decode() for f in expected}
    assert "Apache License" in texts["vllm/LICENSE"]
    if choice.target == "ascend":
        cann = texts["vllm_ascend/LICENSE.CANN-2.0"]
        assert cann.startswith("CANN Open Software License Agreement Version 2.0")
        assert "CANN-Open-Software-License-2.0" in str(metadata["License-Expression"])


def test_it_takes_the_pythons_that_are_tested(archive):
    """As the README says; upstream allows later ones."""
    _, metadata = metadata_of(archive)
    required = SpecifierSet(str(metadata["Requires-Python"]))
    taken = [minor for minor in range(8, 20) if f"3.{minor}.1" in required]
    said = re.search(r"3\.(\d+) to 3\.(\d+)", (ROOT / "README.md").read_text())
    assert said is not None
    assert taken[0] >= int(said[1]), "a later upstream may want more"
    assert taken[-1] == int(said[2])
    named = re.findall(r"Python :: 3\.(\d+)", str(metadata))
    assert {*map(int, named)} <= {*taken}


def test_entry_points_are_those_of_both_upstreams_and_ours(choice, archive, paths):
    text = archive.read(f"{metadata_of(archive)[0]}entry_points.txt").decode()
    assert "vllm = vllm.entrypoints.cli.main:main" in text
    assert "vllm-balance = vllm_balance.cli:main" in text
    assert "lora_filesystem_resolver = " in text
    assert ("vllm_balance.reference" in text) == (choice.target == "reference")
    assert "vllm_balance = vllm_balance.start:register" in text
    others = [n for n in archive.namelist() if n.count("/") == 3 and "entry_poi" in n]
    (guard,) = [name for name in others if "/vllm_balance-" in name]
    assert "vllm_balance = vllm_balance.start:register" in archive.read(guard).decode()
    others.remove(guard)
    if choice.target == "ascend":
        plugin = archive.read(others[0]).decode()
        # As the plugin's setup.py spells them.
        setup = (paths.pristine / "vllm-ascend-0.23.0.post1" / "setup.py").read_text()
        for line in plugin.splitlines():
            assert line.startswith("[") or not line or f'"{line}"' in setup
        assert plugin.count("vllm_ascend:register") == 5
        assert text.count("vllm_ascend:register") == 5
    else:
        assert others == []


def test_record_says_what_the_wheel_was_built_from(choice, archive, paths):
    record = json.loads(archive.read("vllm_balance/build.json"))
    assert record["lock"] == paths.lock.read_text()
    for package in ("vllm", "vllm_ascend"):
        assert record["series_sha256"][package] == series_sha256(paths.root, package)
    assert record["wheel"] == Path(archive.filename or "").name
    assert record["target"] == choice.target


def test_the_bill_names_what_the_wheel_is_made_from(choice, archive, paths):
    """Each file of the lock with its hash, and every patch, whole."""
    folder, metadata = metadata_of(archive)
    version = metadata["Version"]
    text = archive.read(f"{folder}sboms/{BILL}").decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill, lock = json.loads(text), load_lock(paths.lock)
    assert "timestamp" not in bill["metadata"]
    assert bill["metadata"]["component"]["version"] == version
    parts = {part["name"]: part for part in bill["components"]}
    assert parts.pop("vllm-balance")["version"] == version
    assert set(parts) == {lock.packages[name].project for name in packages(choice)}
    for package in packages(choice):
        sdist = lock.packages[package]
        part = parts[sdist.project]
        assert part["purl"].startswith(f"pkg:pypi/{sdist.project}@{sdist.version}%2B")
        (origin,) = part["pedigree"]["ancestors"]
        assert origin["version"] == sdist.version
        assert [h["content"] for h in origin["hashes"]] == [sdist.sha256]
        patches = {
            patch["resolves"][0]["name"]: patch["diff"]["text"]["content"].encode()
            for patch in part["pedigree"]["patches"]
        }
        series = load_series(paths.patches(package)).patches
        assert patches == {patch.name: patch.raw for patch in series}
    if choice.target == "ascend":
        (kernels,) = parts["vllm-ascend"]["components"]
        wheel = lock.kernel_wheel(choice.python, choice.arch)
        assert [h["content"] for h in kernels["hashes"]] == [wheel.sha256]
        assert "LicenseRef-CANN" in str(kernels["licenses"])


def test_the_vex_says_of_each_advisory_what_holds(archive, paths):
    """By the serial number of the bill, which it refers to, and its name of vLLM."""
    folder, _ = metadata_of(archive)
    text = archive.read(f"{folder}sboms/{VEX}").decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(archive.read(f"{folder}sboms/{BILL}"))
    known = load_advisories(paths.root / "advisories.toml")
    said = {one["bom-ref"]: one for one in json.loads(text)["vulnerabilities"]}
    assert set(said) == {one.id for one in known.advisories}
    vllm = quote(next(p["purl"] for p in bill["components"] if p["name"] == "vllm"), "")
    target = f"{bill['serialNumber'].replace('urn:uuid', 'urn:cdx')}/1#{vllm}"
    patched = patched_in(paths.root, load_lock(paths.lock))
    record = json.loads(archive.read("vllm_balance/build.json"))
    assert record["advisories_as_of"] == known.as_of.isoformat()
    for one in known.advisories:
        entry, state = said[one.id], record["advisories"][one.id]["status"]
        assert entry["id"] == (one.cve or one.id)
        assert entry["affects"] == [{"ref": target}]
        resolved = entry["analysis"]["state"] == "resolved_with_pedigree"
        assert resolved == (one.id in patched) == (state == "fixed here")
        not_affected = entry["analysis"]["state"] == "not_affected"
        assert not_affected == (state == "not affected")


STATUS = {"fixed here": "fixed", "not affected": "not_affected", "open": "affected"}


def test_openvex_says_the_same_of_the_wheel_by_its_address(archive, paths):
    folder, metadata = metadata_of(archive)
    said = json.loads(archive.read(f"{folder}sboms/{OPEN_VEX}"))
    assert said["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert said.keys() >= {"@id", "author", "timestamp", "version"}
    known = load_advisories(paths.root / "advisories.toml").advisories
    record = json.loads(archive.read("vllm_balance/build.json"))["advisories"]
    address = "pkg:pypi/vllm@" + metadata["Version"].replace("+", "%2B")
    for one, entry in zip(known, said["statements"], strict=True):
        about, status = entry["vulnerability"], entry["status"]
        assert {about["name"], *about.get("aliases", ())} == {one.id, one.cve} - {""}
        assert entry["products"] == [{"@id": address}]
        state = record[one.id]["status"]
        if state == "open" and not one.workaround:
            assert status == "under_investigation"
        else:
            assert status == STATUS[state]
        assert ("justification" in entry) == (status == "not_affected")
        assert ("action_statement" in entry) == (status == "affected")
