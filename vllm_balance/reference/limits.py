"""What the reference platform does not run, each with the sentence that refuses it."""

from importlib.util import find_spec
from typing import Any

from vllm.exceptions import VLLMValidationError

DRAFTED_BY = ("ngram", "mtp", "eagle3", "draft_model")
"""Methods of speculation that run, by the names that ``SpeculativeConfig`` has."""

CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16")


def check(config: Any) -> None:
    """Refuse a ``VllmConfig`` that asks for something unsupported.

    Anything not listed here is either supported or refused by vLLM's CPU platform.

    Raises:
        ValueError: says what.
    """
    for asked, flag, advice in _refusals(config):
        if asked:
            raise ValueError(f"{flag}: the reference platform {advice}")


def check_sampling(speculative: bool, temperature: float) -> None:
    """Refuse a request that speculative decoding cannot sample.

    Upstream's CPU rejection sampler handles greedy requests only.

    Raises:
        VLLMValidationError: the temperature is not 0.
    """
    if speculative and temperature > 0:
        raise VLLMValidationError(
            f"temperature={temperature}: the reference platform decodes speculatively "
            "only where sampling is greedy; send temperature=0 or serve without "
            "--speculative-config"
        )


def _refusals(config: Any) -> list[tuple[bool, str, str]]:
    """(asked for, the flag, the rest of the sentence) of every limit."""
    model, parallel = config.model_config, config.parallel_config
    speculative = config.speculative_config
    mode = config.compilation_config.mode
    return [
        (
            mode is not None and mode.name != "NONE",
            f"--compilation-config mode={getattr(mode, 'name', None)}",
            "compiles nothing; leave the option out",
        ),
        (
            config.use_v2_model_runner,
            "VLLM_USE_V2_MODEL_RUNNER=1",
            "runs the V1 model runner only; unset the variable",
        ),
        (
            parallel.decode_context_parallel_size > 1
            or parallel.prefill_context_parallel_size > 1,
            "--decode-context-parallel-size, --prefill-context-parallel-size",
            "has no context parallelism; leave both at 1",
        ),
        (
            parallel.enable_elastic_ep or parallel.enable_eplb,
            "--enable-elastic-ep, --enable-eplb",
            "keeps experts where they were loaded; leave the options out",
        ),
        (
            config.cache_config.cache_dtype not in CACHE_DTYPES,
            f"--kv-cache-dtype {config.cache_config.cache_dtype}",
            f"stores plain values; use one of {', '.join(CACHE_DTYPES)}",
        ),
        (
            _adapts_experts(config.lora_config, model),
            "--enable-lora",
            "adapts no experts; name the other layers, as in --lora-target-modules "
            "q_proj k_proj v_proj o_proj, or merge the adapter into the model",
        ),
        (
            speculative is not None and speculative.method not in DRAFTED_BY,
            f"--speculative-config method={getattr(speculative, 'method', None)}",
            f"drafts by one of {', '.join(DRAFTED_BY)}",
        ),
        (
            getattr(speculative, "method", None) == "ngram"
            and find_spec("numba") is None,
            "--speculative-config",
            "needs numba for method ngram, as every vLLM does; pip install numba",
        ),
        (
            model is not None and model.quantization is not None,
            f"--quantization {getattr(model, 'quantization', None)}",
            "has no quantised operators; serve unquantised weights",
        ),
        (
            model is not None and model.has_inner_state,
            f"model {getattr(model, 'model', None)}",
            "has no state-space operators; serve a model with attention layers only",
        ),
    ]


def _adapts_experts(lora: Any, model: Any) -> bool:
    if lora is None or model is None or not model.is_moe:
        return False
    targets = lora.target_modules
    return targets is None or any(name.endswith("experts") for name in targets)
