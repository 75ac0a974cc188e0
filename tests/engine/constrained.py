"""Requests with grammars, as a front-end has checked them and a scheduler gets them."""

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output.request import StructuredOutputRequest

from schedulers import engine_config, make_request

BACKENDS = ("xgrammar", "guidance", "outlines")
"""Without lm-format-enforcer, whose pinned release imports what 0.23.0 has not."""


def constrained(config, **constraint):
    """Params as a front-end has checked them."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
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
    request.structured_output_request = type(
        request.structured_output_request or structured(request.sampling_params)
    ).from_sampling_params(request.sampling_params)
    manager = scheduler.structured_output_manager
    manager.grammar_init(request)
    return request, request.structured_output_request._grammar.result(60)


def structured(params):

    return StructuredOutputRequest(params=params.structured_outputs)


def with_backend(model, backend, **arguments):
    return engine_config(
        model,
        skip_tokenizer_init=False,
        structured_outputs_config={"backend": backend},
        **arguments,
    )
