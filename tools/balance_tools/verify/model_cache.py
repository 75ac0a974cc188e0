"""A model cache with configurations only, so that upstream's tests run with no hub.

Weights and tokenizers are missing; tests that need them fail with and without our
patches alike, and do not count.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def _config(model_type: str, architecture: str, **sizes: Any) -> dict[str, Any]:
    names = {"model_type": model_type, "architectures": [architecture]}
    return {**names, "dtype": "float16", **sizes}


# The models that upstream's scheduler tests name, in their published sizes, where these
# are not the defaults of transformers.
MODELS = {
    "facebook/opt-125m": _config("opt", "OPTForCausalLM"),
    "facebook/opt-350m": _config(
        "opt",
        "OPTForCausalLM",
        hidden_size=1024,
        word_embed_proj_dim=512,
        num_hidden_layers=24,
        num_attention_heads=16,
        ffn_dim=4096,
        do_layer_norm_before=False,
    ),
    "Qwen/Qwen3-0.6B": _config(
        "qwen3",
        "Qwen3ForCausalLM",
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
    ),
    "Qwen/Qwen1.5-7B": _config("qwen2", "Qwen2ForCausalLM", intermediate_size=11008),
}


def write_hub(folder: Path) -> None:
    """Write the cache below `folder`, to be used as HF_HOME."""
    for name, config in MODELS.items():
        model = folder / "hub" / f"models--{name.replace('/', '--')}"
        revision = hashlib.sha1(name.encode()).hexdigest()
        snapshot = model / "snapshots" / revision
        snapshot.mkdir(parents=True, exist_ok=True)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text(revision)
        (snapshot / "config.json").write_text(json.dumps(config, indent=1))
