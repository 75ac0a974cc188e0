"""An emulated Ascend device, below the ABI of CANN: docs/reference-platform.md."""
