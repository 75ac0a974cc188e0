# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Keeps one client from ending or silencing all, whatever the policy.

For what is refused the client gets status 400. Later releases of vLLM refuse most of it
themselves.
"""

import json
import re
import sys
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.fixes.grammars import was_checked
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.engine.protocol import EngineClient
    from vllm.sampling_params import SamplingParams
    from vllm.tokenizers import TokenizerLike

logger = init_logger(__name__)

MOST_LEVELS = 100
"""Levels of a schema. The front-end's time grows with their cube, and it answers nobody
meanwhile."""

_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""A string, or the beginning of one without an end, so that each is read only once."""


def _levels(schema: object) -> int:
    """How deep a JSON schema is nested, which may be parsed."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
    except RecursionError:
        return MOST_LEVELS + 1
    brackets = re.findall(r"[][{}]", _TEXT.sub("", text))
    return max(accumulate(1 if each in "[{" else -1 for each in brackets), default=0)


def drop_unknown_ends(
    generation_config: dict[str, Any], model_config: "ModelConfig"
) -> None:
    """Drops ids that end an answer by the model's files and are no tokens of the model.

    It never answers with them, but `min_tokens` would index its logits with them.
    """
    ends = generation_config.get("eos_token_id") or ()
    ends = [ends] if isinstance(ends, int) else list(ends)
    size = model_config.get_vocab_size() or sys.maxsize  # some models have none
    known = [token for token in ends if 0 <= token < size]
    if known != ends:
        generation_config["eos_token_id"] = known
        logger.warning("Of eos_token_id %s the model has only %s.", ends, known)


def check_client(
    params: "SamplingParams",
    model_config: "ModelConfig",
    tokenizer: "TokenizerLike | None" = None,
) -> None:
    """Refuses what upstream's own checks leave out."""
    vocab_size = model_config.get_vocab_size()
    end = getattr(tokenizer, "eos_token_id", None) or 0
    if params.min_tokens and end >= vocab_size:
        raise VLLMValidationError(
            f"the tokenizer ends answers with {end}, and the model has only "
            f"{vocab_size} tokens, so that min_tokens cannot be kept",
            parameter="min_tokens",
            value=params.min_tokens,
        )
    for name in ("stop_token_ids", "allowed_token_ids"):  # which index logits
        ids = getattr(params, name, None) or ()
        unknown = [token for token in ids if not 0 <= token < vocab_size]
        if unknown:
            raise VLLMValidationError(
                f"{name} has ids that the model has no token for; expected 0 to "
                f"{vocab_size - 1}",
                parameter=name,
                value=unknown,
            )
    constraint = params.structured_outputs
    if constraint is None or was_checked(constraint):
        return
    if constraint.json_object is False or constraint.json == "":
        raise VLLMValidationError(
            "structured_outputs has no constraint; leave it out, or give json a schema "
            "or json_object true",
            parameter="structured_outputs",
        )
    for name in ("json", "structural_tag"):
        if _levels(getattr(constraint, name)) > MOST_LEVELS:
            raise VLLMValidationError(
                f"structured_outputs.{name} is nested deeper than {MOST_LEVELS} levels",
                parameter=name,
            )


def check_resize(client: "EngineClient") -> None:
    """Refuses to resize a server that is not elastic, before anything is touched.

    Upstream finds that out once it has made all metrics anew.
    """
    if not client.vllm_config.parallel_config.enable_elastic_ep:
        raise VLLMValidationError(
            "this server cannot be resized; start it with --enable-elastic-ep",
            parameter="new_data_parallel_size",
        )
