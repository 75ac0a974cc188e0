"""`vllm/` and `vllm_ascend/` on the disk: upstream, our patches, our own files."""
