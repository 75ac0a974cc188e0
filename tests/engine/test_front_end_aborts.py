"""Upstream's front-end class beside real schedulers, while clients give up."""

import asyncio
import random
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.balance.dispatch import TO_ATTEND, TO_COMPUTE, Dispatch
from vllm.v1.core.sched.balance.front_end import BalanceDispatch, PromptHasher
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
)
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.request import Request, RequestStatus
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from schedulers import (
    BLOCK_SIZE,
    answer,
    complete,
    engine_config,
    image,
    make_scheduler,
)
from test_front_end_model import front_end, made

RANKS = 3
SESSIONS = 12
HASHER = get_request_block_hasher(BLOCK_SIZE, sha256)


class Rank:
    """A real scheduler behind the socket; it stands in for the process around it."""

    def __init__(self, model):
        sizes = {"max_num_batched_tokens": 1024, "max_model_len": 2048}
        config = engine_config(model, enable_prefix_caching=True, **sizes)
        self.scheduler = make_scheduler(config, num_blocks=300)
        self.scheduler.max_num_encoder_input_tokens = 100
        self.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=2000)
        self.scheduler.finished_req_ids_dict = defaultdict(set)
        self._decode = MsgpackDecoder(EngineCoreRequest).decode
        self._names = MsgpackDecoder().decode

    def take(self, kind, frames, fails):
        """As the engine's input thread, which answers at once what it cannot read."""
        if kind == EngineCoreRequestType.ABORT.value:
            names = self._names(frames)
            self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)
            return None
        request = self._decode(frames)
        if fails:
            name, error = request.request_id, FinishReason.ERROR
            output = EngineCoreOutput(name, [], finish_reason=error)
            return EngineCoreOutputs(outputs=[output], finished_requests={name})
        self.scheduler.add_request(Request.from_engine_core_request(request, HASHER))
        return None

    def step(self):
        """One step, in which every prompt that is complete gets a token."""
        planned = self.scheduler.schedule()
        tokens = complete(self.scheduler, planned)
        return list(answer(self.scheduler, planned, tokens).values())


class Client:
    """The client's own methods, with a socket that ends at the ranks."""

    def __init__(self, model, rng, by_context):
        if by_context:
            self.dispatch = Dispatch(RANKS, 4, TO_ATTEND)
            balance = BalanceDispatch(self.dispatch)
        else:
            chunks = 300 * BLOCK_SIZE // 512
            self.dispatch = Dispatch(RANKS, 4, TO_COMPUTE, None, chunks, 512)
            balance = BalanceDispatch(self.dispatch, PromptHasher(BLOCK_SIZE))
        self.real = front_end(RANKS, balance)
        self._by_context = by_context
        self.ranks = [Rank(model) for _ in range(RANKS)]
        self._rng = rng
        self._answers: list[EngineCoreOutputs] = []
        self.seen: Counter[str] = Counter()
        self.computed: list[set[Any]] = [set() for _ in range(RANKS)]
        vars(self.real).update(
            client_index=0,
            current_wave=0,
            engines_running=True,
            encoder=MsgpackEncoder(),
            input_socket=SimpleNamespace(send_multipart=self._send),
            resources=SimpleNamespace(engine_dead=False),
            pending_messages=[],
            _ensure_stats_update_task=lambda: None,
            _ensure_output_queue_task=lambda: None,
        )

    def _send(self, message, **_):
        engine, kind, *frames = message
        fails = self._rng.random() < 0.05
        answer = self.ranks[int(engine)].take(kind, frames, fails)
        if answer is not None:
            self.seen["error of the rank"] += 1
            self._answers.append(answer)
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent

    async def step(self):
        """All ranks step, and the front-end sees what they and the errors say."""
        answers, self._answers = self._answers, []
        for rank in self.ranks:
            answers += rank.step()
        for each in answers:
            for output in each.outputs:
                sent = self.dispatch._requests.get(output.request_id)
                if output.new_token_ids and sent is not None and sent.to_compute:
                    self.computed[sent.rank].update(sent.keys)
                    self.seen["first token"] += 1
            await DPLBAsyncMPClient.process_engine_outputs(self.real, each)
        if self._by_context:
            self._check_contexts()
            return
        for memory, computed in zip(self.dispatch.memories, self.computed, strict=True):
            assert computed.issuperset(memory._keys)
            self.seen["belief"] += len(memory)

    def _check_contexts(self):
        """The front-end knows exactly what the requests of each rank attend to."""
        for rank, own in zip(self.ranks, self.dispatch.own, strict=True):
            requests = rank.scheduler.requests.values()
            contexts = [request.num_tokens for request in requests]
            assert own == (sum(contexts), len(contexts))
            self.seen["context"] += sum(contexts)
            self.seen["preempted"] += sum(each.num_preemptions for each in requests)


@pytest.mark.parametrize("by_context", [False, True], ids=["prefixes", "context"])
def test_ten_thousand_aborts_and_errors_leave_nothing(moe_model, by_context):
    """At every time and twice; with pins, preemptions, and caches that are reset."""
    rng = random.Random(1)
    client = Client(moe_model, rng, by_context)
    real, seen = client.real, client.seen

    async def ask(number):
        session = rng.randrange(SESSIONS)
        tokens = [3 + session] * rng.choice((20, 300, 600, 1100, 1700))
        odd = {"stop_token_ids": [2**64]} if rng.random() < 0.05 else {}
        output = rng.choice((1, 2, 10))
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, **odd)
        pin = rng.randrange(RANKS) if rng.random() < 0.1 else None
        fields = {"sampling_params": sampling, "data_parallel_rank": pin}
        if rng.random() < 0.3:
            fields["lora_request"] = LoRARequest("adapter", 1, "/none")
        if len(tokens) > 1000 and rng.random() < 0.3:
            fields["mm_features"] = [image(rng.choice("ab"), 520)]
        request = made(request_id=f"{number}", prompt_token_ids=tokens, **fields)
        try:
            await real.add_request_async(request)
        except OverflowError:
            seen["not sent"] += 1
        return request.request_id

    async def serve():
        open_: list[str] = []
        number = 0
        while seen["abort"] + seen["error of the rank"] + seen["not sent"] < 10_000:
            for _ in range(rng.randrange(12)):
                open_.append(await ask(number))
                number += 1
            rng.shuffle(open_)
            given_up = [open_.pop() for _ in range(min(len(open_), rng.randrange(12)))]
            gone = [name for name in given_up if name not in client.dispatch._requests]
            seen["abort"] += len(given_up) - len(gone)
            seen["late abort"] += len(gone)
            await real.abort_requests_async(given_up)
            if rng.random() < 0.1:
                await real.abort_requests_async(given_up[:1])
            if rng.random() < 0.02:
                rank = rng.choice(client.ranks)
                rank.scheduler.reset_prefix_cache(reset_running_requests=True)
                seen["reset"] += 1
            await client.step()
        await real.abort_requests_async(open_)
        while any(rank.scheduler.has_requests() for rank in client.ranks):
            await client.step()
        await client.step()

    asyncio.run(serve())
    print(dict(seen))
    assert min(seen.values()) > 20
    dispatch = client.dispatch
    assert dispatch.own == [(0, 0)] * RANKS
    assert not dispatch._requests
    assert not dispatch._users
    assert not any(memory.coming for memory in dispatch.memories)
