"""Gather and scatter of unequal parts over gloo.

Seam: ``Platform.get_device_communicator_cls``. Data-parallel ranks hold different
numbers of tokens; vLLM's all-to-all of the MoE layers asks the communicator for
``all_gatherv`` and ``reduce_scatterv``, which its CPU communicator does not have.
"""

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class ReferenceCommunicator(CpuCommunicator):
    """The CPU communicator with the two collectives that data parallelism needs."""

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """Concatenate every rank's tensor (or each of a list) along dimension 0.

        ``sizes[rank]`` is the length of that rank's part; None: all as long as ours.
        """
        if isinstance(input_, list):
            return [self._gather(tensor, dim, sizes) for tensor in input_]
        return self._gather(input_, dim, sizes)

    def _gather(
        self, part: torch.Tensor, dim: int, sizes: list[int] | None
    ) -> torch.Tensor:
        sizes = sizes or [part.shape[0]] * self.world_size
        if dim != 0 or part.shape[0] != sizes[self.rank_in_group]:
            raise ValueError(
                f"all_gatherv: rank {self.rank_in_group} has {part.shape[0]} rows, "
                f"sizes are {sizes}, dimension is {dim} (only 0 can be gathered)"
            )
        # gloo gathers equal parts only: pad to the longest.
        padded = part.new_zeros((max(sizes), *part.shape[1:]))
        padded[: part.shape[0]] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.device_group)
        return torch.cat([p[:n] for p, n in zip(parts, sizes, strict=True)])

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """Sum over the ranks, and keep this rank's part along ``dim``.

        ``sizes[rank]`` is the length of that rank's part; None: equal parts.
        """
        length = input_.shape[dim]
        sizes = sizes or [length // self.world_size] * self.world_size
        if sum(sizes) != length:
            raise ValueError(
                f"reduce_scatterv: sizes {sizes} add up to {sum(sizes)}, "
                f"dimension {dim} has {length}"
            )
        total = input_.contiguous().clone()  # the collective works in place
        dist.all_reduce(total, group=self.device_group)
        return total.split(sizes, dim)[self.rank_in_group].contiguous()
