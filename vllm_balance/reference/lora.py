# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""LoRA operators that leave requests without an adapter alone."""

import torch
from vllm.lora.punica_wrapper import utils
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.utils import torch_utils

# The CPU worker replaces this function, because there is no pinned memory. This module
# still has the other one if it was imported before, as with several API servers.
utils.async_tensor_h2d = torch_utils.async_tensor_h2d


class ReferencePunicaWrapper(PunicaWrapperCPU):
    """Upstream's, with no adapter where it takes the last one.

    An adapter would change the requests of the model itself (vllm #48421): the index
    -1, which means none, is that of the last one.
    """

    def _apply_shrink(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float
    ) -> None:
        super()._apply_shrink(y, x, w_t_all, scale)
        y.view(-1, y.shape[-1])[self.token_lora_indices < 0] = 0.0
