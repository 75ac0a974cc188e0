"""A model cache with configurations only, so that upstream's tests run with no hub.

Weights and tokenizers are missing; tests that need them fail with and without our
patches alike, and do not count.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_OPT = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "dtype": "float16"}
_OPT_125M = {
    **_OPT,
    "hidden_size": 768,
    "word_embed_proj_dim": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "ffn_dim": 3072,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
}
_OPT_350M = {
    **_OPT_125M,
    "hidden_size": 1024,
    "word_embed_proj_dim": 512,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "ffn_dim": 4096,
    "do_layer_norm_before": False,
}
_QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "dtype": "float16",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
_QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "dtype": "float16",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
}
# The models that upstream's scheduler tests name, in their published sizes.
MODELS: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": _OPT_125M,
    "facebook/opt-350m": _OPT_350M,
    "Qwen/Qwen3-0.6B": _QWEN3,
    "Qwen/Qwen1.5-7B": _QWEN2,
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
