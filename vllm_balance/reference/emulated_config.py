"""The option that chooses the emulated device.

``--additional-config`` with the key ``emulated_device`` and the constants of a cost
model.
"""

from dataclasses import fields
from typing import Any

from vllm_balance.errors import UsageError
from vllm_balance.simulator.step_time.model import CostModel

OPTION = "emulated_device"
"""The key in ``--additional-config``."""

SCALES = "decode_scales"
"""The key in it that is none of ``CostModel``."""

WORKER = "vllm_balance.reference.emulated_device.EmulatedDevice"


Scales = tuple[tuple[int, float], ...]
"""A device whose times change: pairs of a number of steps in which any rank decodes,
and the factor by which such steps last longer after them. ((0, 60), (1, 1)) has a slow
first decode."""


def parse(options: Any) -> tuple[CostModel, Scales]:
    where = f"--additional-config {OPTION}"
    # The device does not count what prompt tokens attend to.
    known = {field.name for field in fields(CostModel)} - {"attention"}
    if not isinstance(options, dict):
        raise ValueError(f"{where}: give an object, not {options!r}")
    if unknown := ", ".join(sorted(set(options) - known - {SCALES})):
        choices = ", ".join(sorted(known | {SCALES}))
        raise ValueError(f"{where}: unknown {unknown}; choose from {choices}")
    if missing := ", ".join(sorted({"t0", "a", "b", "c"} - set(options))):
        raise ValueError(f"{where}: lacks {missing} (seconds)")
    try:
        cost = CostModel(**{k: v for k, v in options.items() if k in known})
        scales = [(int(n), float(x)) for n, x in options.get(SCALES, ())]
    except (UsageError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    if scales != sorted(scales) or not all(n >= 0 and x > 0 for n, x in scales):
        raise ValueError(
            f"{where}: {SCALES} must be pairs of a number of steps, rising, and a "
            f"scale above 0, not {scales}"
        )
    return cost, tuple(scales)


def check(config: Any) -> None:
    parse(config.additional_config[OPTION])
    parallel = config.parallel_config
    for asked, flag in (
        (parallel.world_size > 1, "--tensor-parallel-size, --pipeline-parallel-size"),
        (config.speculative_config is not None, "--speculative-config"),
        (config.use_v2_model_runner, "VLLM_USE_V2_MODEL_RUNNER"),
    ):
        if asked:
            raise ValueError(f"{flag}: the emulated device has none; leave it out")
    role = getattr(config.kv_transfer_config, "kv_role", "kv_consumer")
    if role != "kv_consumer":
        raise ValueError(
            f"--kv-transfer-config: kv_role is {role}, but the emulated device moves "
            "no KV cache; give kv_consumer and DecodeBenchConnector, as if prompts had "
            "arrived"
        )
