"""Tiny models: equal bytes each time, no folder of others destroyed."""

import hashlib
import json
import subprocess
import sys

import pytest

from hugging_face import NEW_TOKENS, Sample
from vllm_balance.reference import tiny_models


def digest(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def test_equal_bytes(tmp_path):
    """By another process, as a person runs it."""
    command = [sys.executable, "-m", "vllm_balance.reference.tiny_models", "--out"]
    run = subprocess.run([*command, tmp_path / "one"], capture_output=True, text=True)
    folders = [tmp_path / "one" / name for name in tiny_models.TINY]
    assert run.stdout.split() == list(map(str, folders)), run.stderr
    for folder in folders:
        again = tiny_models.make(folder.name, tmp_path / "two")
        assert digest(folder) == digest(again)
        assert "model.safetensors" in digest(folder)


def test_a_folder_of_others_is_left_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "thesis.txt").write_text("years of work")
    monkeypatch.setattr(sys, "argv", ["", "--out", str(tmp_path), "--model", "moe"])
    assert tiny_models.main() == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'moe'}: expected no such folder")
    assert (tmp_path / "moe" / "thesis.txt").read_text() == "years of work"


def test_a_large_one_has_the_sizes_asked_for(tmp_path, monkeypatch, capsys):
    """The dense layers are spread evenly, the first among them."""
    sizes = ["--hidden", "256", "--layers", "3", "--dense-layers", "2", "--experts=4"]
    words = ["", "--out", str(tmp_path), "--model", "large", *sizes]
    monkeypatch.setattr(sys, "argv", words)
    assert tiny_models.main() == 0
    config = json.loads((tmp_path / "large/config.json").read_text())
    found = [config[name] for name in ("hidden_size", "num_hidden_layers")]
    found += [config["mlp_only_layers"], config["num_local_experts"]]
    assert found == [256, 3, [0, 1], 4]
    again = tiny_models.make(
        "large", tmp_path / "two", hidden=256, layers=3, dense_layers=2, experts=4
    )
    assert digest(tmp_path / "large") == digest(again)
    capsys.readouterr()
    refused = {
        ("--hidden", "100"): "--hidden 100: give a multiple of 256",
        ("--dense-layers", "6"): "--dense-layers 6: expected 0 or more, and fewer than",
        ("--experts", "1"): "--experts 1: give 2 or more",
    }
    for given, text in refused.items():
        new = ["", "--out", str(tmp_path / "three"), "--model", "large", *given]
        monkeypatch.setattr(sys, "argv", new)
        assert tiny_models.main() == 1
        assert capsys.readouterr().err.startswith(f"error: {text}")


@pytest.mark.parametrize("samples", ["moe_samples", "dense_samples"])
def test_greedy_text_keeps_changing(samples, request):
    found: list[Sample] = request.getfixturevalue(samples)
    assert len(found) >= 20
    assert min(len(s.prompt) for s in found) == 1
    assert max(len(s.prompt) for s in found) == 300
    for sample in found:
        assert len(set(sample.tokens)) >= NEW_TOKENS / 4, sample
    assert len({s.tokens[0] for s in found}) >= len(found) / 2
