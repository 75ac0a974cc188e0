"""Mixture-of-experts layers as a loop over experts, in PyTorch.

Seam: vLLM's registry of out-of-tree operators. Importing this module replaces
``UnquantizedFusedMoEMethod``, whose CPU path needs a compiled kernel and whose PyTorch
fallback knows no expert map (expert parallelism). Whether the method routes the tokens
itself (``apply_monolithic``) or the layer has done so (``apply``) depends on the
release; vLLM calls the one that its ``is_monolithic`` names.
"""

import importlib
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.nn.functional as F  # noqa: N812  the name PyTorch's users know
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

_ROUTINGS = ("cpu_fused_moe", "experts.cpu_moe")
"""Modules of which a release that calls `apply_monolithic` has one, from 0.28 on the
second."""


def expert_loop(
    tokens: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
) -> torch.Tensor:
    """The weighted sum of each token's experts, SiLU-gated; ``[tokens, hidden]``.

    ``gate_up`` is ``[experts, 2 * intermediate, hidden]``, ``down`` is ``[experts,
    hidden, intermediate]``, ``weights`` and ``experts`` are ``[tokens, top k]``. A
    negative expert lives on another rank and adds nothing. Summed in float32.
    """
    result = torch.zeros_like(tokens, dtype=torch.float32)
    for expert in experts.unique().tolist():
        if expert < 0:
            continue
        token, choice = (experts == expert).nonzero(as_tuple=True)
        gate, up = F.linear(tokens[token], gate_up[expert]).chunk(2, dim=-1)
        output = F.linear(F.silu(gate) * up, down[expert]).float()
        result.index_add_(0, token, output * weights[token, choice, None])
    return result.to(tokens.dtype)


@cache
def _routing() -> ModuleType:
    """Upstream's module that routes tokens.

    By name: later releases, which call `apply`, have none.
    """
    package = UnquantizedFusedMoEMethod.__module__.rpartition(".")[0]
    names = (f"{package}.{name}" for name in _ROUTINGS)
    return importlib.import_module(next(name for name in names if find_spec(name)))


@CustomOp.register_oot(name="UnquantizedFusedMoEMethod")
class ReferenceMoEMethod(UnquantizedFusedMoEMethod):
    """Unquantised experts, computed by ``expert_loop`` from the weights as loaded."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check the layer; upstream would pack the weights for its kernels here."""
        if (
            layer.activation != MoEActivation.SILU
            or layer.apply_router_weight_on_input
            or self.moe.has_bias
        ):
            raise NotImplementedError(
                "reference platform: experts must be SiLU-gated, without bias, and "
                f"weighted after they ran; this layer has {layer.activation}, "
                f"bias={self.moe.has_bias}, apply_router_weight_on_input="
                f"{layer.apply_router_weight_on_input}: serve another model"
            )

    def apply_monolithic(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        weights, experts = _routing().select_experts(
            hidden_states=x,
            router_logits=router_logits,
            top_k=layer.top_k,
            use_grouped_topk=layer.use_grouped_topk,
            renormalize=layer.renormalize,
            topk_group=layer.topk_group,
            num_expert_group=layer.num_expert_group,
            custom_routing_function=layer.custom_routing_function,
            scoring_func=layer.scoring_func,
            routed_scaling_factor=layer.routed_scaling_factor,
            e_score_correction_bias=layer.e_score_correction_bias,
        )
        return self.apply(layer, x, weights, experts)

    def apply(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *_: object,
        **__: object,
    ) -> torch.Tensor:
        """Run the experts of this rank on ``x`` ``[tokens, hidden]``, routed already.

        The rest of the arguments is about shared experts, which the layer runs.
        """
        experts = topk_ids
        if layer.expert_map is not None:
            experts = layer.expert_map[experts]
        return expert_loop(x, layer.w13_weight, layer.w2_weight, topk_weights, experts)
