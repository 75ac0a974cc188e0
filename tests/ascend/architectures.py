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


def minimax(vocabulary: int, shape: dict[str, Any]) -> torch.nn.Module:
    config = transformers.MiniMaxM2Config(
        vocab_size=vocabulary,
        num_local_experts=8,
        num_experts_per_tok=2,
        rotary_dim=32,
        scoring_func="sigmoid",  # as the next: what Hugging Face assumes, unwritten
        use_routing_bias=True,
        **shape | {"intermediate_size": 64},
    )
    return transformers.MiniMaxM2ForCausalLM(config)


def qwen3_vl(vocabulary: int, shape: dict[str, Any]) -> torch.nn.Module:
    """Qwen3-VL, a mixture of experts.

    Published weights of experts have inputs before outputs. vLLM turns them round, and
    transformers does where shapes differ, but does not write them so.
    """
    rotary = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}
    text = EXPERTS | shape | {"moe_intermediate_size": 96, "num_experts": 8}
    text |= {"vocab_size": vocabulary, "rope_parameters": rotary}
    text["norm_topk_prob"] = True  # as Hugging Face does, and does not write
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": shape["hidden_size"],
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    config = transformers.Qwen3VLMoeConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False
    )
    model = transformers.Qwen3VLMoeForConditionalGeneration(config)
    for name, weight in model.named_parameters():
        if ".experts." in name:
            weight.data = weight.data.transpose(1, 2).contiguous()
    return model


MODELS: dict[str, Callable[[int, dict[str, Any]], torch.nn.Module]] = {
    "GLM-4.7": glm4_moe,
    "GLM-5": glm_dsa,
    "MiniMax-M2": minimax,
    "Qwen3-VL": qwen3_vl,
}
