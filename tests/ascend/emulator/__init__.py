"""An emulated Ascend device, below the ABI of CANN: docs/emulated-npu.md."""
