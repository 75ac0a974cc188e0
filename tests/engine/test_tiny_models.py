"""Tiny models: equal bytes each time, no work twice, no folder of others destroyed."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hugging_face import NEW_TOKENS, Sample
from vllm_balance.reference import tiny_models


def digest(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the module as a person would."""
    module = ("-m", "vllm_balance.reference.tiny_models")
    return subprocess.run(
        [sys.executable, *module, *arguments], capture_output=True, text=True
    )


def test_equal_bytes(tmp_path: Path) -> None:
    for out in ("one", "two"):
        run = command("--out", str(tmp_path / out))
        assert run.returncode == 0, run.stderr
        assert run.stdout.split() == [
            str(tmp_path / out / name) for name in tiny_models.MODELS
        ]
    for name in tiny_models.MODELS:
        one, two = (digest(tmp_path / out / name) for out in ("one", "two"))
        assert one == two
        assert "model.safetensors" in one


def test_made_once(tmp_path: Path) -> None:
    folder = tiny_models.make("dense", tmp_path)
    (folder / "note").touch()
    assert tiny_models.make("dense", tmp_path) == folder
    assert (folder / "note").exists()


def test_made_anew_when_its_recipe_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_models.make("dense", tmp_path)
    old = digest(folder)
    monkeypatch.setattr(tiny_models, "SEED", 1)
    tiny_models.make("dense", tmp_path)
    assert digest(folder)["model.safetensors"] != old["model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "thesis.txt").write_text("years of work")
    run = command("--out", str(tmp_path), "--model", "moe")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(f"error: {tmp_path / 'moe'}: exists")
    assert (tmp_path / "moe" / "thesis.txt").read_text() == "years of work"


def test_tokenizer_keeps_every_byte(moe_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(moe_model)
    text = "naïve café, 東京 \n\t {json: 1}"
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text.encode())
    assert tokenizer.decode(tokens) == text
    chat = [{"role": "user", "content": "hello"}]
    rendered = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("samples", ["moe_samples", "dense_samples"])
def test_greedy_text_keeps_changing(
    samples: str, request: pytest.FixtureRequest
) -> None:
    found: list[Sample] = request.getfixturevalue(samples)
    assert len(found) >= 20
    assert min(len(s.prompt) for s in found) == 1
    assert max(len(s.prompt) for s in found) == 300
    for sample in found:
        assert len(set(sample.tokens)) >= NEW_TOKENS / 4, sample
    assert len({s.tokens[0] for s in found}) >= len(found) / 2
