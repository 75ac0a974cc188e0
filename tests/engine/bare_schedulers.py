"""vLLM's schedulers and requests, made without an engine around them."""

from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16
"""Tokens in a block of the KV cache."""

FULL_ATTENTION = FullAttentionSpec(
    block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32
)
"""One small layer."""


def make_scheduler(
    config: VllmConfig,
    num_blocks: int,
    scheduler_class: type[Scheduler] = Scheduler,
    *,
    log_stats: bool = False,
    layers: Sequence[KVCacheSpec] = (FULL_ATTENTION,),
) -> Any:
    """Makes a scheduler for a model of a few layers, without workers.

    Args:
        config: of the engine that it would have; its cache gets the blocks.
        num_blocks: blocks of `BLOCK_SIZE` tokens, vLLM's null block included.
        scheduler_class: the scheduler, or a subclass.
        log_stats: whether it collects statistics.
        layers: what each keeps in the KV cache; each is a group of the cache.
    """
    config.cache_config.num_gpu_blocks = num_blocks
    register_all_kvcache_specs(config)
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer.{number}"], layer)
                for number, layer in enumerate(layers)
            ],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=log_stats,
    )


def make_request(
    request_id: str,
    prompt_len: int,
    output_len: int,
    prompt_token_ids: list[int] | None = None,
    **arguments: Any,
) -> Request:
    """Makes a request that ends after so many output tokens.

    Args:
        request_id: its name.
        prompt_len: tokens of the prompt.
        output_len: tokens of the answer.
        prompt_token_ids: the prompt; all alike by default.
        arguments: further arguments of `Request`.
    """
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids or [1] * prompt_len,
        sampling_params=SamplingParams(max_tokens=output_len, ignore_eos=True),
        pooling_params=None,
        **arguments,
    )
