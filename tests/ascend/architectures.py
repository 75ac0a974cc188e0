"""Tiny models, of random weights, of the architectures that upstream deploys."""

import copy
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa

ROOT = Path(__file__).resolve().parents[2]
_source = ROOT / "vllm_balance/reference/tiny_models.py"
# Of the checkout: the Ascend wheel leaves it out.
_spec = importlib.util.spec_from_file_location("tiny_models", _source)
assert _spec is not None
assert _spec.loader is not None
tiny_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_models)

GLM = {
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 2,
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


FORESIGHT = 0.25
"""How much of a token's embedding the head has for the token behind it."""
CONTEXT, SHARE = 0.1, 0.3
"""What the layers keep of their output, and drafters of hidden states.

So two models with equal embeddings and heads often write the same, and often not.
"""


def deepseek(vocabulary: int, shape: dict[str, Any]) -> torch.nn.Module:
    """DeepSeek-V3, with a layer more for MTP."""
    shape = shape | {"num_key_value_heads": 4, "num_hidden_layers": 3}
    del shape["head_dim"]
    config = transformers.DeepseekV3Config(
        vocab_size=vocabulary,
        moe_intermediate_size=96,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",  # which Hugging Face does not write, and assumes
        first_k_dense_replace=1,
        num_nextn_predict_layers=1,
        **LATENT,
        **shape,
    )
    return with_mtp(transformers.DeepseekV3ForCausalLM(config))


def with_mtp(model: torch.nn.Module) -> torch.nn.Module:
    config, embeddings, head = model.config, model.model.embed_tokens, model.lm_head
    hidden = config.hidden_size
    with torch.no_grad():
        _softened(model).lm_head.weight += FORESIGHT * embeddings.weight.roll(1, 0)
    config.num_hidden_layers -= 1
    layer = model.model.layers[config.num_hidden_layers]
    layer.embed_tokens = copy.deepcopy(embeddings)
    for name in ("enorm", "hnorm"):
        layer.add_module(name, torch.nn.RMSNorm(hidden))
    layer.eh_proj = _of_both(hidden)
    layer.shared_head = torch.nn.Module()
    layer.shared_head.norm = torch.nn.RMSNorm(hidden)
    layer.shared_head.head = copy.deepcopy(head)
    return model


def _softened(model: torch.nn.Module) -> torch.nn.Module:
    """A randomised model whose layers add less to the embedding of the last token."""
    for name, weight in tiny_models.randomised(model).named_parameters():
        if "o_proj" in name or "down_proj" in name:
            weight.data *= CONTEXT
    return model


def _of_both(hidden: int) -> torch.nn.Linear:
    """A layer that adds to an embedding a random part of a hidden state."""
    layer = torch.nn.Linear(2 * hidden, hidden, bias=False)
    with torch.no_grad():
        tiny_models.randomised(layer).weight *= SHARE
        layer.weight[:, :hidden] = torch.eye(hidden)
    return layer


class Eagle3LlamaForCausalLM(transformers.LlamaModel):
    """An EAGLE3 head; vLLM and this class find its weights by the same names."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        hidden, (layer,) = config.hidden_size, self.layers
        attention = layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            outputs = getattr(attention, name).out_features
            new = torch.nn.Linear(2 * hidden, outputs, bias=False)
            attention.add_module(name, new)
        layer.hidden_norm = torch.nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.fc = torch.nn.Linear(hidden, hidden, bias=False)
        self.lm_head = torch.nn.Linear(hidden, config.vocab_size, bias=False)


def eagle3(vocabulary: int, shape: dict[str, Any]) -> torch.nn.Module:
    """An EAGLE3 head that reads what ``deepseek`` has after its first layer."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        draft_vocab_size=vocabulary,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1]},
        **shape | {"num_hidden_layers": 1},
    )
    model = _softened(Eagle3LlamaForCausalLM(config))
    attention, hidden = model.layers[0].self_attn, config.hidden_size
    heads = (config.num_key_value_heads, config.head_dim, -1)
    copies = config.num_attention_heads // config.num_key_value_heads
    with torch.no_grad():  # the embedding comes in by a token's attention to itself
        keys = attention.k_proj.weight
        keys[:, hidden:] *= SHARE
        queries = keys.view(heads).repeat_interleave(copies, 0)
        attention.q_proj.weight.copy_(queries.reshape(-1, 2 * hidden))
        attention.v_proj.weight.copy_(torch.eye(hidden, 2 * hidden))
        outputs = torch.eye(hidden).view(heads).repeat_interleave(copies, 0)
        attention.o_proj.weight.copy_(outputs.reshape(-1, hidden).T / copies)
        model.fc.weight *= SHARE
    target = deepseek(vocabulary, shape)
    inputs = target.get_input_embeddings().state_dict()
    model.get_input_embeddings().load_state_dict(inputs)
    model.lm_head.load_state_dict(target.lm_head.state_dict())
    return model


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
    return with_mtp(transformers.GlmMoeDsaForCausalLM(config))


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
    "deepseek": deepseek,
    "eagle3": eagle3,
    "GLM-5": glm_dsa,
}
tiny_models.MODELS |= {
    name: functools.partial(make, shape=tiny_models.SHAPE)
    for name, make in MODELS.items()
}
