"""What is installed and torn is said in one sentence, and nothing is to be deleted."""

import subprocess
import sys
from importlib.metadata import Distribution
from types import SimpleNamespace

import pytest

from stub_wheels import write_stub
from vllm_balance import verify
from vllm_balance.build_info import load_build_info
from vllm_balance.installed import Installed
from vllm_balance.verify import verify_installation


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"wheel": '])
def test_a_torn_build_record_is_named(text, tmp_path):
    (path := tmp_path / "build.json").write_text(text)
    with pytest.raises(SystemExit, match="json: expected the build record of a wheel"):
        load_build_info(path)


@pytest.mark.parametrize("record", [None, ""])
def test_without_a_record_no_file_is_called_foreign(record, tmp_path):
    folder = tmp_path / "vllm-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: vllm\nVersion: 1\n")
    if record is not None:
        (folder / "RECORD").write_text(record)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/envs.py").touch()
    main = Installed("vllm", "1", tmp_path, Distribution.at(folder))
    info = SimpleNamespace(wheel="w.whl", distributions={"vllm": "1"}, target="a")
    assert verify_installation(info, [main]) == [
        f"{tmp_path}: expected the RECORD of vllm there, found none; repair: pip "
        "install --force-reinstall --no-deps w.whl"
    ]


def test_pips_option_target_is_an_installation(tmp_path):
    """RECORD says that scripts are elsewhere than pip puts them."""
    script = "vllm-1.data/scripts/vllm"
    files = {script: "#!python\n", "vllm/envs.py": "", "vllm-1.data/data/share/x": ""}
    wheel = write_stub(tmp_path, "vllm", "1", files=files)
    folder = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--target", folder, wheel], check=True)
    found = Distribution.at(folder / "vllm-1.dist-info")
    main = Installed("vllm", "1", folder, found)
    info = SimpleNamespace(wheel="w.whl", distributions={"vllm": "1"}, target="a")
    assert folder / "bin/vllm" in main.files
    assert verify_installation(info, [main]) == []
    (folder / "bin/vllm").write_text("another")
    (finding,) = verify_installation(info, [main])
    assert finding.startswith(f"{folder}/bin/vllm: expected as it was built, found mod")


def test_of_many_findings_the_first_are_printed_and_the_rest_counted(
    monkeypatch, capsys
):
    monkeypatch.setattr(verify, "load_build_info", lambda: SimpleNamespace(wheel="w"))
    findings = [f"file {number}: wrong" for number in range(14)]
    monkeypatch.setattr(verify, "verify_installation", lambda *_: findings)
    assert verify.run(SimpleNamespace()) == 1
    *first, last = capsys.readouterr().err.splitlines()
    assert first == findings[:10]
    assert last.startswith("4 more; run this again")
