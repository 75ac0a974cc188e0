# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Refuses what a request has too much of, or what the engine cannot take.

For what is refused the client gets status 400.
"""

import secrets
from typing import TYPE_CHECKING, Any

import torch
from vllm.exceptions import VLLMValidationError
from vllm.fixes.limits import RefusalError, limit, too_large

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

PROMPTS = "VLLM_MAX_COMPLETION_PROMPTS"
MOST_PROMPTS = limit(PROMPTS, 1024)

SALT = "VLLM_MAX_CACHE_SALT_LENGTH"
MOST_SALT = limit(SALT, 1024)
"""Characters. Upstream has the same limit, and no variable for it."""

TRUST = "VLLM_TRUST_REQUEST_MM_KWARGS"
"""Upstream's --trust-request-mm-kwargs, of 0.31.0 and later."""
TRUSTS_MEDIA_OPTIONS = limit(TRUST, 0) > 0


def check_prompts(body: Any, *fields: str, times: int = 1) -> None:
    """Refuses a request of more prompts, or conversations, than the limit."""
    most, name = times * MOST_PROMPTS, PROMPTS
    if times > 1:
        name = f"{times} times {PROMPTS}"
    given = body if isinstance(body, dict) else {f: getattr(body, f, 0) for f in fields}
    for field in fields or ("prompt", "prompt_embeds"):
        prompts = given.get(field)
        # A list of numbers is the tokens of one prompt.
        if not isinstance(prompts, list) or not 0 < most < len(prompts):
            continue
        if not isinstance(prompts[0], int):
            raise too_large(field, f"has {len(prompts)} prompts", most, name)


def check_inputs(request: Any) -> None:
    """As `check_prompts`, for pooling requests, whose batches are larger."""
    fields = "input", "data_1", "data_2", "documents", "items", "texts", "inputs"
    check_prompts(request, *fields, times=8)


def check_salt(prompt: Any) -> None:
    """Refuses a long cache_salt: the engine hashes it between two steps."""
    salt = prompt.get("cache_salt")
    if MOST_SALT > 0 and salt is not None and len(salt) > MOST_SALT:
        what = f"has {len(salt)} characters"
        raise too_large("cache_salt", what, MOST_SALT, SALT)


def check_token_ids(token_ids: list[int] | None) -> None:
    """Refuses negative ids of tokens: they index embeddings."""
    lowest = min(token_ids or [0])
    if lowest < 0:
        raise VLLMValidationError(
            f"the prompt has the token id {lowest}, which is out of vocabulary; "
            "expected 0 or more",
            parameter="prompt",
            value=lowest,
        )


def check_embeddings(model_config: "ModelConfig", prompt: Any) -> None:
    """Refuses embeddings alone for a model that takes positions from tokens."""
    if prompt.get("prompt_token_ids") is None and (
        model_config.uses_mrope or model_config.uses_xdrope_dim > 0
    ):
        raise VLLMValidationError(
            "prompt_embeds alone are not supported by this model, which takes "
            "positions from token ids (M-RoPE); send a prompt of tokens",
            parameter="prompt_embeds",
        )


def keep_sparse_checks() -> None:
    """Checks every sparse tensor from now on.

    Upstream sets this flag of the process for each load, and then resets it: where two
    loads overlap, the end of one takes it from the other.
    """
    torch.sparse.check_sparse_tensor_invariants.enable()


def check_prompt_logprobs(vllm_config: "VllmConfig", params: Any) -> None:
    """Refuses prompt_logprobs where a prefill instance has computed the prompt.

    Only a rank that computes the prompt has them. A connector cannot be told not to
    fetch it, and some connectors end their rank.
    """
    if not params.skip_reading_prefix_cache:
        return
    transfer = (getattr(params, "extra_args", None) or {}).get("kv_transfer_params")
    is_fetched = isinstance(transfer, dict) and transfer.get("do_remote_prefill")
    role = getattr(vllm_config.kv_transfer_config, "kv_role", None)
    if role == "kv_consumer" or is_fetched:
        raise VLLMValidationError(
            "prompt_logprobs, or echo with logprobs, need a prompt that is computed "
            "here, and this one comes from a prefill instance; ask that one",
            parameter="prompt_logprobs",
        )


def computes_its_prompt(connector: Any) -> Any:
    """A KV connector that gives nothing to requests whose whole prompt is computed.

    Such a request asks for `prompt_logprobs`. Of tokens that come from a store, these
    would be values of unrelated memory; upstream does not read the local cache for them
    either. The connector still hears of the request.
    """
    find = connector.get_num_new_matched_tokens

    def find_unless_computed(request: Any, *computed: Any) -> tuple[int | None, bool]:
        matched = find(request, *computed)
        return (0, False) if request.skip_reading_prefix_cache else matched

    connector.get_num_new_matched_tokens = find_unless_computed
    return connector


def own_keys(context: Any, keys: list[str]) -> list[str]:
    """Keys of one request that no other can name, as its id is what a client says."""
    if not hasattr(context, "own_key"):
        context.own_key = secrets.token_hex(16)
    return [f"{key}-{context.own_key}" for key in keys]


def check_media_options(body: Any) -> None:
    """Refuses what tells the processors of images, audio and video what to do.

    It may name code that is run, and sizes that nothing limits.
    """
    if TRUSTS_MEDIA_OPTIONS or not isinstance(body, dict):
        return
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if body.get(name):
            raise RefusalError(
                f"{name} are not taken from requests; the operator may set them for "
                f"all, or trust clients with {TRUST}=1",
                parameter=name,
            )


def without_media_options(cls: type, body: Any) -> Any:
    """The body of a request, for a class whose validators differ in each release."""
    check_media_options(body)
    return body


def without_padding(request: Any, drafts: list[int]) -> list[int]:
    """The drafts of a request with a grammar up to the first that is none, as -1."""
    if not request.use_structured_output or min(drafts, default=0) >= 0:
        return drafts
    return drafts[: next(i for i, token in enumerate(drafts) if token < 0)]


def keep_salt(first: Any, following: Any) -> None:
    """Gives the prompt after a tool call the salt of the first one."""
    if salt := first.get("cache_salt"):
        following["cache_salt"] = salt
