"""The tiny models of the reference platform, which the Ascend wheel leaves out."""

import importlib.util
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).resolve().parents[2] / "vllm_balance/reference/tiny_models.py"


def tiny_models() -> ModuleType:
    """`tiny_models`, from this checkout."""
    spec = importlib.util.spec_from_file_location("tiny_models", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
