"""Operators of torch_npu (npu::, atb::) and of the plugin (_C_ascend::), in torch.

Semantics are those of torch_npu's own descriptions of its operators and of how the
plugin calls them. An argument that is not emulated, and an operator that is not here,
refuses with its name.
"""
