"""What the reference platform does not run, each with the sentence that refuses it."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from vllm.exceptions import VLLMValidationError

CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16")


def check(config: Any) -> None:
    """Refuse a ``VllmConfig`` that asks for something unsupported.

    Anything not listed here is either supported or refused by vLLM's CPU platform.
    """
    for flag, advice in _refusals(config):
        raise ValueError(f"{flag}: the reference platform {advice}")


def check_sampling(speculative: bool, temperature: float) -> None:
    """Refuse a request that speculative decoding cannot sample.

    Upstream's CPU rejection sampler handles greedy requests only.
    """
    if speculative and temperature > 0:
        raise VLLMValidationError(
            f"temperature={temperature}: the reference platform decodes speculatively "
            "only where sampling is greedy; send temperature=0 or serve without "
            "--speculative-config"
        )


def _refusals(config: Any) -> Iterator[tuple[str, str]]:
    """The flag, and the rest of the sentence, of every limit that is passed."""
    model, parallel = config.model_config, config.parallel_config
    mode, cache_dtype = config.compilation_config.mode, config.cache_config.cache_dtype
    if mode is not None and mode.name != "NONE":
        flag = f"--compilation-config mode={mode.name}"
        yield flag, "compiles nothing; leave the option out"
    if config.use_v2_model_runner:
        flag = "VLLM_USE_V2_MODEL_RUNNER=1"
        yield flag, "runs the V1 model runner only; unset the variable"
    decode = parallel.decode_context_parallel_size
    if max(decode, parallel.prefill_context_parallel_size) > 1:
        flag = "--decode-context-parallel-size, --prefill-context-parallel-size"
        yield flag, "has no context parallelism; leave both at 1"
    if parallel.enable_elastic_ep or parallel.enable_eplb:
        flag = "--enable-elastic-ep, --enable-eplb"
        yield flag, "keeps experts where they were loaded; leave the options out"
    if cache_dtype not in CACHE_DTYPES:
        known = ", ".join(CACHE_DTYPES)
        yield (
            f"--kv-cache-dtype {cache_dtype}",
            f"stores plain values; use one of {known}",
        )
    if config.lora_config is not None:
        yield "--enable-lora", "adapts no layers; merge the adapter into the model"
    method = getattr(config.speculative_config, "method", None)
    if config.speculative_config is not None and method != "ngram":
        flag = f"--speculative-config method={method}"
        yield flag, "drafts by ngram, without a model"
    if method == "ngram" and find_spec("numba") is None:
        advice = "needs numba for method ngram, as every vLLM does; pip install numba"
        yield "--speculative-config", advice
    if model is not None and model.quantization is not None:
        advice = "has no quantised operators; serve unquantised weights"
        yield f"--quantization {model.quantization}", advice
    if model is not None and model.has_inner_state:
        advice = (
            "has no state-space operators; serve a model with attention layers only"
        )
        yield f"model {model.model}", advice
