# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Refuses requests that would end all ranks; later releases of vLLM refuse them too."""

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING

from vllm.exceptions import VLLMValidationError

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.sampling_params import SamplingParams

_TOKEN_IDS = ("stop_token_ids", "allowed_token_ids")
"""Fields with which logits are indexed."""


MOST_LEVELS = 100
"""Of a schema: the front-end takes the cube of them, and answers nobody meanwhile."""
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


def _levels(schema: object) -> int:
    """How deep a JSON schema is nested, as a text or parsed."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
    except RecursionError:
        return MOST_LEVELS + 1
    brackets = re.findall(r"[][{}]", _TEXT.sub("", text))
    return max(accumulate(1 if each in "[{" else -1 for each in brackets), default=0)


def check_client(params: "SamplingParams", model_config: "ModelConfig") -> None:
    """Checks what upstream's own checks leave out, whatever the policy.

    Raises:
        VLLMValidationError: the client gets status 400.
    """
    vocab_size = model_config.get_vocab_size()
    for name in _TOKEN_IDS:
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
    if constraint is not None and (
        constraint.json_object is False or constraint.json == ""
    ):
        raise VLLMValidationError(
            "structured_outputs has no constraint; leave it out, or give json a schema "
            "or json_object true",
            parameter="structured_outputs",
        )
    for name in ("json", "structural_tag") if constraint is not None else ():
        if _levels(getattr(constraint, name)) > MOST_LEVELS:
            raise VLLMValidationError(
                f"structured_outputs.{name} is nested deeper than {MOST_LEVELS} levels",
                parameter=name,
            )
