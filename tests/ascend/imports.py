"""Imports every module of the plugin; prints the errors of those that fail, as JSON.

Those that fail are tried once more when all others have been imported: `cycles` lists
those that could then be imported.
"""

import importlib
import json
import pkgutil
import sys
import warnings

NOT_MODULES = ("._cann_ops_custom", ".vllm_ascend_C", ".libvllm_ascend_kernels")
"""Operators of CANN, and libraries; test_wheel.py loads these."""


def main() -> None:
    warnings.simplefilter("ignore")
    import torch_npu  # noqa: F401
    import vllm_ascend

    walk = pkgutil.walk_packages(
        vllm_ascend.__path__, "vllm_ascend.", onerror=lambda name: None
    )
    names = [m.name for m in walk if not any(part in m.name for part in NOT_MODULES)]
    first = errors_of(names)
    failed = errors_of(first)
    found = {
        "imported": len(names) - len(failed),
        "cycles": sorted(first.keys() - failed),
        "failed": failed,
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def errors_of(names):
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            text = str(error).splitlines()
            failed[name] = f"{type(error).__name__}: {text[0] if text else ''}"
    return failed


if __name__ == "__main__":
    main()
