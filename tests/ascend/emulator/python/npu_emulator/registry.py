"""Which operators are emulated; all others of a namespace refuse by name."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

Operator = Callable[..., Any]
EMULATED: dict[str, Operator] = {}
RETURNS: dict[str, tuple[str, ...]] = {}
"""Of operators that make no results: the arguments that they return."""

KEEP = frozenset(
    {
        "npu_change_data_ptr",
        "get_storage_size",
        "copy_memory_",
        "_weak_ref_tensor",
        "weak_ref_tensor",
        "get_npu_storage_shape",
    }
)
"""torch_npu's own work on memory, which runs as it is."""

_libraries: list[torch.library.Library] = []


class NotEmulatedError(NotImplementedError):
    """An operator, or a way of calling it, that the emulated device does not have."""


def operator(
    *names: str, returns: tuple[str, ...] | None = None
) -> Callable[[Operator], Operator]:
    """Register a function as the kernel of these operators: `npu::npu_rms_norm`.

    `returns` are the arguments that it returns, if it makes no results.
    """

    def register(function: Operator) -> Operator:
        for name in names:
            assert name not in EMULATED, name
            EMULATED[name] = function
            if returns is not None:
                RETURNS[name] = returns
        return function

    return register


def require(condition: bool, name: str, what: object) -> None:
    """Raises NotEmulatedError, unless the operator is called in a known way."""
    if not condition:
        raise NotEmulatedError(f"[emulator] {name} is not emulated with {what}")


def require_defaults(name: str, given: dict[str, Any]) -> None:
    """Raises NotEmulatedError for an argument that is set and not known."""
    for key, value in given.items():
        known = value is None or (not isinstance(value, torch.Tensor) and not value)
        require(known, name, f"{key}={value!r:.60}")


def replace(namespaces: Iterable[str]) -> None:
    """Give every operator of the device in these namespaces its emulated kernel."""
    libraries = {n: torch.library.Library(n, "IMPL") for n in namespaces}
    _libraries.extend(libraries.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there was a kernel before
        registered = torch._C._dispatch_get_registrations_for_dispatch_key
        for name in registered("PrivateUse1"):
            space, _, rest = name.partition("::")
            if space not in libraries or rest in KEEP:
                continue
            kernel = _launched(name, EMULATED.get(name) or _refuse(name))
            libraries[space].impl(rest, kernel, "PrivateUse1", allow_override=True)


def override() -> None:
    """Give the emulated operators of aten their kernels; others run as the CPU's."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there was a kernel before
        for name, kernel in EMULATED.items():
            space, _, rest = name.partition("::")
            if space == "aten":
                kernel = _launched(name, kernel)
                library.impl(rest, kernel, "PrivateUse1", allow_override=True)


def _launched(name: str, kernel: Operator) -> Operator:
    from .launches import launched  # not before torch_npu is there

    operator, _, overload = name.partition(".")
    schema = torch._C._get_schema(operator, overload)
    returns = RETURNS.get(name) if schema.returns else ()
    return launched(name, kernel, [a.name for a in schema.arguments], returns)


def _refuse(name: str) -> Operator:
    def run(*arguments: Any, **rest: Any) -> None:
        shapes = [_short(a) for a in arguments] + [
            f"{key}={_short(value)}" for key, value in rest.items()
        ]
        raise NotEmulatedError(f"[emulator] {name} is not emulated: {shapes}")

    return run


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{value!r:.40}"
