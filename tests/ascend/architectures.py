"""Tiny models, of random weights, of the architectures that upstream deploys."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa

EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
GLM = EXPERTS | {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}


def glm4_moe(vocabulary: int, shape: dict[str, Any]) -> torch.nn.Module:
    """GLM-4.7, with a layer more for MTP."""
    shape = shape | {"num_hidden_layers": 3}
    config = transformers.Glm4MoeConfig(
        vocab_size=vocabulary,
        num_nextn_predict_layers=1,
        partial_rotary_factor=0.5,
        **GLM,
        **shape,
    )
    return transformers.Glm4MoeForCausalLM(config)


def glm_dsa(vocabulary: int, shape: dict[str, Any]) -> torch.nn.Module:
    """GLM-5, with a layer more for MTP; the plugin takes no other `index_topk`."""
    shape = shape | {"num_key_value_heads": 4, "num_hidden_layers": 3}
    del shape["head_dim"]
    config = transformers.GlmMoeDsaConfig(
        vocab_size=vocabulary,
        mlp_layer_types=["dense", "sparse", "sparse"],
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        index_topk=2048,
        index_head_dim=32,
        index_n_heads=16,  # fewer make scores of 0, which are ties
        num_nextn_predict_layers=1,
        **LATENT,
        **GLM,
        **shape,
    )
    return transformers.GlmMoeDsaForCausalLM(config)


def interleave(model: torch.nn.Module) -> None:
    """Let Hugging Face's GLM-5 rotate pairs of neighbours, as later releases do.

    Those of today rotate halves: huggingface/transformers, 46372 and 46842.
    """

    def rotated(x, cos, sin, unsqueeze_dim=1):
        cos, sin = (t.unsqueeze(unsqueeze_dim) for t in (cos, sin))
        x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
        return x * cos + modeling_glm_moe_dsa.rotate_half(x) * sin

    modeling_glm_moe_dsa.apply_rotary_pos_emb = rotated


MODELS: dict[str, Callable[[int, dict[str, Any]], torch.nn.Module]] = {
    "GLM-4.7": glm4_moe,
    "GLM-5": glm_dsa,
}
