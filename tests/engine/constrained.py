"""Requests with grammars, as a front-end has checked them and a scheduler gets them."""

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output.request import StructuredOutputRequest

from schedulers import engine_config, make_request

BACKENDS = ("xgrammar", "guidance", "outlines")
"""Without lm-format-enforcer, whose pinned release imports what 0.23.0 has not."""


def constrained(config, **constraint):
    constraint = StructuredOutputsParams(**constraint)
    return verified(config, structured_outputs=constraint)


def verified(config, **sampling):
    """Params as a front-end has checked them."""
    params = SamplingParams(**sampling)
    params.verify(
        config.model_config,
        None,
        config.structured_outputs_config,
        cached_tokenizer_from_config(config.model_config),
    )
    return params


def compiled(scheduler, config, **constraint):
    """The grammar of a request that the scheduler gets."""
    request = make_request("r", 4, 4)
    request.sampling_params = constrained(config, **constraint)
    made = StructuredOutputRequest.from_sampling_params(request.sampling_params)
    request.structured_output_request = made
    manager = scheduler.structured_output_manager
    manager.grammar_init(request)
    return request, made._grammar.result(60)


def with_backend(model, backend, **arguments):
    return engine_config(
        model,
        skip_tokenizer_init=False,
        structured_outputs_config={"backend": backend},
        **arguments,
    )
