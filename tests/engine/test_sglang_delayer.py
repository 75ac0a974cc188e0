"""Our model of SGLang's prefill delayer decides as SGLang's own code does.

The code is fetched from the package index and runs here with stand-ins for the rest of
SGLang: its configuration, its clock, and the collective call between its ranks.
"""

import random
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.benchmarks.dp_balance.rivals.sglang_delayer import (
    DelayerParameters,
    RankState,
    SGLangDelayer0523,
)

RELEASE = "0.5.23"
MODULE = "sglang/srt/managers/prefill_delayer.py"


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SGLang's module, from its wheel."""
    folder = tmp_path_factory.mktemp("sglang")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--only-binary", ":all:", "--dest", str(folder), f"sglang=={RELEASE}"),
    ]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(MODULE).decode()


class Theirs:
    """SGLang's delayers of all ranks, and what surrounds them."""

    def __init__(
        self, source: str, ranks: int, parameters: DelayerParameters, slots: int
    ) -> None:
        self.now = 0.0
        self._told: list[Any] = []
        schedule = SimpleNamespace(
            prefill_delayer_queue_min_ratio=parameters.queue_min_ratio,
            prefill_delayer_max_delay_ms=None,
            prefill_max_requests=None,
            disable_overlap_schedule=False,
        )
        group = SimpleNamespace(device_group=None, cpu_group=None, device="cpu")
        parallel = SimpleNamespace(
            num_dp_ranks=ranks,
            attn_dp_enabled=True,
            attn_cp_size=1,
            attn_tp_size=1,
            tp_group=group,
        )
        flag = SimpleNamespace(get=lambda: False)
        names = {
            "sglang.srt.distributed.utils": {"all_gather_single": self._gather},
            "sglang.srt.environ": {
                "envs": SimpleNamespace(
                    SGLANG_NCCL_ALL_GATHER_IN_OVERLAP_SCHEDULER_SYNC_BATCH=flag
                )
            },
            "sglang.srt.runtime_context": {
                "get_parallel": lambda: parallel,
                "get_schedule": lambda: schedule,
            },
            "sglang.srt.utils": {"get_bool_env_var": lambda name: False},
            "time": {**vars(time), "perf_counter": lambda: self.now},
        }
        self._code = ModuleType("prefill_delayer_of_sglang")
        with pytest.MonkeyPatch.context() as patch:
            for name, content in names.items():
                module = ModuleType(name)
                vars(module).update(content)
                patch.setitem(sys.modules, name, module)
            patch.setitem(sys.modules, self._code.__name__, self._code)
            exec(compile(source, MODULE, "exec"), vars(self._code))
        self._slots = slots
        self._delayers = [
            self._code.PrefillDelayer(parameters.max_delay_passes, None)
            for _ in range(ranks)
        ]
        self._trackers = [
            self._code.RecentPrefillBatchSizeTracker() for _ in range(ranks)
        ]

    def _gather(self, buffer: Any, mine: Any, group: Any) -> None:
        buffer.copy_(torch.cat(self._told))

    def allows(self, states: list[RankState]) -> bool:
        """What every rank decides; they agree."""
        executor = self._code.PrefillDelayerSinglePassExecutor
        batches = [tracker.max_prefill_bs for tracker in self._trackers]
        self._told = [
            torch.tensor(
                [
                    state.prefillable,
                    False,  # no watermark
                    state.running,
                    batch,
                    state.waiting,
                    self._has_expired(),
                ],
                dtype=torch.int64,
            )
            for state, batch in zip(states, batches, strict=True)
        ]
        decisions = []
        for number, state in enumerate(states):
            attempt = executor(self._delayers[number], token_usage=1.0)
            allowed = attempt.negotiate_should_allow_prefill(
                local_prefillable=state.prefillable,
                running_batch=state.running,
                max_prefill_bs=batches[number],
                max_running_requests=self._slots,
                waiting_queue_len=state.waiting,
            )
            decisions.append(allowed)
            if size := attempt.finalize(actual_prefill_bs=0):
                self._trackers[number].observe_attempt(size)
        assert len(set(decisions)) == 1
        return bool(decisions[0])

    def _has_expired(self) -> bool:
        state = self._delayers[0]._curr_state
        enabled = self._delayers[0]._queue_trigger_enabled
        return bool(enabled and state and self.now - state.start_time >= 5.0)


def generated(rng: random.Random, ranks: int, slots: int) -> Iterator[list[RankState]]:
    """States that follow on each other: phases in which all, some or no ranks have
    something to prefill."""
    for _ in range(30):
        share = rng.choice([0.0, 0.5, 0.9, 1.0, 1.0])
        most = rng.choice([1, 3, 10])
        for _ in range(rng.randint(1, 25)):
            yield [
                RankState(
                    rng.random() < share,
                    rng.randint(0, slots),
                    rng.randint(0, most),
                    slots,
                )
                for _ in range(ranks)
            ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_decision_is_the_same(source: str) -> None:
    seen = {True: 0, False: 0}
    for case in range(60):
        rng = random.Random(case)
        ranks, slots = rng.choice([2, 4, 8]), rng.choice([4, 16, 64])
        parameters = DelayerParameters(
            rng.choice([1, 2, 5, 30, 100]),
            rng.choice([None, None, 0.1, 0.5]),
        )
        theirs = Theirs(source, ranks, parameters, slots)
        ours = SGLangDelayer0523(parameters)
        for number, states in enumerate(generated(rng, ranks, slots)):
            theirs.now += rng.choice([0.01, 0.1, 1.0])
            wanted = theirs.allows(states)
            found = ours.allows(states, theirs.now)
            assert found == wanted, f"case {case}, pass {number}: {parameters} {states}"
            seen[wanted] += 1
    assert min(seen.values()) > 1000
