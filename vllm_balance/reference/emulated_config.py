"""The option that chooses the emulated device.

``--additional-config`` with the key ``emulated_device`` and the constants of a cost
model.
"""

from dataclasses import dataclass, fields
from typing import Any

from vllm.benchmarks.dp_balance.errors import UsageError
from vllm.benchmarks.dp_balance.step_time.model import CostModel

OPTION = "emulated_device"
"""The key in ``--additional-config``."""

WORKER = "vllm_balance.reference.emulated_device.EmulatedDevice"
"""For ``ParallelConfig.worker_cls``."""


@dataclass(frozen=True)
class EmulatedDeviceConfig:
    """What the option may say beside the constants of ``CostModel`` (seconds)."""

    cost: CostModel
    time_scale: float = 1.0
    """Waits so many times longer, which makes the host's own time matter less."""
    output_jitter: float = 0.0
    """Requests end up to this share before their ``max_tokens``, unless they ignore
    the end-of-sequence token. The same prompt always ends at the same length."""
    decode_scales: tuple[tuple[int, float], ...] = ()
    """A device whose times change: after so many steps in which any rank decodes,
    these wait so many times longer. ((0, 60), (1, 1)) has a slow first decode."""

    def scale(self, decode_steps: int) -> float:
        """How many times longer the next step with decodes takes, after so many."""
        reached = [
            scale for since, scale in self.decode_scales if since <= decode_steps
        ]
        return self.time_scale * (reached[-1] if reached else 1)

    @classmethod
    def parse(cls, options: Any) -> "EmulatedDeviceConfig":
        """Read the option.

        Raises:
            ValueError: names what is wrong with it.
        """
        where = f"--additional-config {OPTION}"
        # The device does not count what prompt tokens attend to.
        known = {field.name for field in fields(CostModel)} - {"attention"}
        own = {"time_scale", "output_jitter", "decode_scales"}
        if not isinstance(options, dict):
            raise ValueError(f"{where}: give an object, not {options!r}")
        if unknown := ", ".join(sorted(set(options) - known - own)):
            choices = ", ".join(sorted(known | own))
            raise ValueError(f"{where}: unknown {unknown}; choose from {choices}")
        if missing := ", ".join(sorted({"t0", "a", "b", "c"} - set(options))):
            raise ValueError(f"{where}: lacks {missing} (seconds)")
        try:
            config = cls(
                CostModel(**{k: v for k, v in options.items() if k in known}),
                float(options.get("time_scale", 1)),
                float(options.get("output_jitter", 0)),
                tuple((int(n), float(x)) for n, x in options.get("decode_scales", ())),
            )
        except (UsageError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        scales = list(config.decode_scales)
        if not config.time_scale > 0 or not 0 <= config.output_jitter < 1:
            raise ValueError(
                f"{where}: time_scale must be above 0 and output_jitter from 0 to "
                f"below 1, not {config.time_scale} and {config.output_jitter}"
            )
        if scales != sorted(scales) or not all(n >= 0 and x > 0 for n, x in scales):
            raise ValueError(
                f"{where}: decode_scales must be pairs of a number of steps, rising, "
                f"and a scale above 0, not {scales}"
            )
        return config


def check(config: Any) -> None:
    """Refuse a ``VllmConfig`` that the device cannot emulate.

    Raises:
        ValueError: says why.
    """
    EmulatedDeviceConfig.parse(config.additional_config[OPTION])
    parallel = config.parallel_config
    for asked, flag in (
        (parallel.world_size > 1, "--tensor-parallel-size, --pipeline-parallel-size"),
        (config.speculative_config is not None, "--speculative-config"),
        (config.kv_transfer_config is not None, "--kv-transfer-config"),
        (config.use_v2_model_runner, "VLLM_USE_V2_MODEL_RUNNER"),
    ):
        if asked:
            raise ValueError(f"{flag}: the emulated device has none; leave it out")
