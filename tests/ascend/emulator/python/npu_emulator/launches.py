"""Kernels in Python as launches on a stream, which a graph records."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import emulated_aten as native
import torch
from torch_npu._C import _weak_ref_tensor

RUNS, UPDATES = 0, 2
"""What becomes of a launch, as `native/emulator.h` has it; 1 is captured."""


def launched(
    name: str,
    kernel: Callable[..., Any],
    parameters: Sequence[str] = (),
    returns: Sequence[str] | None = (),
) -> Callable[..., Any]:
    """The kernel as one launch: on a captured stream it is recorded and not done.

    Args:
        name: of the operator.
        kernel: what it does.
        parameters: their names.
        returns: which of them are the results. None: it makes its results, and is asked
            for their shapes; they are zeros until a replay.
    """

    def counted(*arguments: Any, **rest: Any) -> Any:
        native.count(name)
        return kernel(*arguments, **rest)

    def run(*arguments: Any, **rest: Any) -> Any:
        mode = native.mode(name)
        if mode == RUNS:
            return native.inside(counted, arguments, rest)
        if returns is None:
            if mode == UPDATES:
                raise RuntimeError(f"[emulator] {name} makes results in an update")
            results = native.inside(_shapes_of, (kernel, arguments, rest), {})
        else:
            values = {**dict(zip(parameters, arguments, strict=False)), **rest}
            results = _as_returned([values[parameter] for parameter in returns])
        taken = set(map(_address, _tensors([*arguments, *rest.values()])))
        places = {
            i: _unkept(result)
            for i, result in enumerate(_tensors(results))
            if result.numel() and _address(result) not in taken
        }
        for place in places.values():
            native.inside(place.zero_, (), {})
        native.record(name, _again(counted, _unkept(arguments), _unkept(rest), places))
        return results

    return run


def _shapes_of(kernel: Callable[..., Any], arguments: Any, rest: Any) -> Any:
    """What the kernel makes of zeros in the place of integers, which may be indices."""

    def harmless(value: Any) -> Any:
        integers = value.device.type == "npu" and not value.is_floating_point()
        return torch.zeros_like(value) if integers else value

    return kernel(*_mapped(harmless, arguments), **_mapped(harmless, rest))


def _again(
    kernel: Callable[..., Any], arguments: Any, rest: Any, places: dict[int, Any]
) -> Callable[[], None]:
    """What a replay does: the kernel, and its results to their places."""

    def run() -> None:
        made = list(_tensors(kernel(*arguments, **rest)))
        for i, place in places.items():
            if made[i].shape != place.shape:
                raise RuntimeError(f"shape {made[i].shape}, captured {place.shape}")
            place.copy_(made[i])

    return run


def _as_returned(results: Sequence[Any]) -> Any:
    tensors = tuple(_tensors(results))
    return tensors if len(tensors) > 1 else tensors[0] if tensors else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The value with other tensors, and with copies of lists, which may change."""
    if isinstance(value, dict):
        return {key: _mapped(function, one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(function, one) for one in value)
    return function(value) if isinstance(value, torch.Tensor) else value


def _unkept(value: Any) -> Any:
    """The same memory of the device, which is not kept."""

    def weak(tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.device.type == "npu" and tensor.numel()
        return _weak_ref_tensor(tensor) if there else tensor

    return _mapped(weak, value)
