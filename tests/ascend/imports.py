"""Imports every module of the plugin; prints the errors of those that fail, as JSON."""

import importlib
import json
import pkgutil
import sys
import warnings

NOT_MODULES = ("._cann_ops_custom", ".vllm_ascend_C")


def main() -> None:
    warnings.simplefilter("ignore")
    import torch_npu  # noqa: F401
    import vllm_ascend

    failed, count = {}, 0
    walk = pkgutil.walk_packages(
        vllm_ascend.__path__, "vllm_ascend.", onerror=lambda name: None
    )
    for module in walk:
        if any(part in module.name for part in NOT_MODULES):
            continue
        try:
            importlib.import_module(module.name)
            count += 1
        except Exception as error:
            text = str(error).splitlines()
            failed[module.name] = f"{type(error).__name__}: {text[0] if text else ''}"
    sys.stdout.write("\n" + json.dumps({"imported": count, "failed": failed}) + "\n")


if __name__ == "__main__":
    main()
