"""The operators of ``torch.ops._C`` of drafting by a model, in PyTorch.

Seam: ``Platform.import_kernels``, as ``operators``. On a CPU they stand in the place of
upstream's Triton kernels of the same names.
"""

import torch

from vllm_balance.reference.operators import operator


@operator(
    "eagle_prepare_inputs_padded_kernel_impl(Tensor cu_num_draft_tokens, "
    "Tensor valid_sampled_tokens_count, Tensor query_start_loc_gpu, "
    "Tensor(a3!) token_indices_to_sample, Tensor(a4!) num_rejected_tokens_gpu, "
    "SymInt num_reqs) -> ()"
)
def prepare_inputs_padded(
    cu_num_draft_tokens: torch.Tensor,
    valid_counts: torch.Tensor,
    query_start_loc: torch.Tensor,
    token_indices_to_sample: torch.Tensor,
    num_rejected: torch.Tensor,
    num_reqs: int,
) -> None:
    """Tell how many drafts of each request were wrong, and where its last good is.

    ``valid_counts`` ``[requests]`` counts the tokens that it got: its good drafts and
    one more.
    """
    drafts = cu_num_draft_tokens.diff(prepend=cu_num_draft_tokens.new_zeros(1))
    rejected = torch.where(drafts > 0, drafts + 1 - valid_counts, 0)[:num_reqs]
    num_rejected[:num_reqs] = rejected
    ends = query_start_loc[1 : num_reqs + 1]
    token_indices_to_sample[:num_reqs] = ends - 1 - rejected


@operator(
    "eagle_prepare_next_token_padded_kernel_impl(Tensor sampled_token_ids, "
    "Tensor discard_request_mask, Tensor backup_next_token_ids, "
    "Tensor(a3!) next_token_ids, Tensor(a4!) valid_sampled_tokens_count, "
    "SymInt vocab_size, SymInt num_sampled_tokens_per_req, SymInt num_reqs) -> ()"
)
def prepare_next_token_padded(
    sampled: torch.Tensor,
    discard: torch.Tensor,
    backup: torch.Tensor,
    next_tokens: torch.Tensor,
    valid_counts: torch.Tensor,
    vocab_size: int,
    per_request: int,
    num_reqs: int,
) -> None:
    """Tell each request's newest token, and how many it got.

    ``sampled`` is ``[requests, per_request]``, −1 after a rejection. A request that is
    discarded, since its prompt is not complete, gets none and keeps its ``backup``.
    """
    rows = sampled[:num_reqs, :per_request]
    valid = (rows >= 0) & (rows < vocab_size) & ~discard[:num_reqs, None]
    counts = valid.sum(1)
    newest = rows.gather(1, (counts - 1).clamp(min=0)[:, None])[:, 0]
    next_tokens[:num_reqs] = torch.where(counts > 0, newest, backup[:num_reqs])
    valid_counts[:num_reqs] = counts


@operator(
    "eagle_step_slot_mapping_metadata_kernel_impl(Tensor positions, "
    "Tensor block_table, Tensor(a2!) seq_lens, Tensor(a3!) out_clamped_positions, "
    "Tensor(a4!) out_slot_mapping, SymInt block_size, SymInt max_model_len, "
    "SymInt PAD_ID) -> ()"
)
def step_slot_mapping(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    block_size: int,
    max_model_len: int,
    pad: int,
) -> None:
    """Move each request on by a token: its position, its cache slot and its length.

    ``out_slots`` may be longer than the batch. What would be past ``max_model_len``
    gets position 0, no slot and length 1.
    """
    requests = len(positions)
    moved = positions + 1
    over = moved >= max_model_len
    moved = torch.where(over, 0, moved)
    block = block_table[torch.arange(requests), moved // block_size].to(torch.int64)
    out_slots.fill_(pad)
    slots = block * block_size + moved % block_size
    out_slots[:requests] = torch.where(over, pad, slots)
    out_positions[:requests] = moved
    seq_lens[:requests] = torch.where(over, 1, seq_lens[:requests] + 1)
