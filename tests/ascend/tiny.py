"""Tiny models: those of the reference platform, which the Ascend wheel leaves out, and
one with attention over latent keys and values (MLA)."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "vllm_balance/reference/tiny_models.py"


def tiny_models() -> ModuleType:
    """`tiny_models`, from this checkout, with the model `latent` besides."""
    spec = importlib.util.spec_from_file_location("tiny_models", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.MODELS["latent"] = make_latent
    return module


def make_latent(vocabulary: int) -> Any:
    """A DeepSeek-V3 of 2 layers; the second has 8 experts in two groups, and one for
    all tokens."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=48,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        norm_topk_prob=True,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        routed_scaling_factor=1.0,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return DeepseekV3ForCausalLM(config)
