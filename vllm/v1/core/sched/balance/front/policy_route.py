# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The route by which operators see and change the policy while a server serves.

It is there only with a key, which is not the clients' one: they reach the same port,
and a policy is everybody's.
"""

import hmac
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Request
from vllm.v1.core.sched.balance.options import check_ranks, only_decodes

from vllm_balance.core.policies.switch_ticket import NAMES, next_ticket
from vllm_balance.policy import KEY, PATH, key_of

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient


def add_policy_route(router: APIRouter) -> None:
    """Adds the route that tells and changes the policy, if there is a key for it."""
    if key_of(KEY):
        router.add_api_route(PATH, _policy, methods=["GET", "POST"])


async def _policy(request: Request) -> dict[str, Any]:
    _check_key(request.headers.get("Authorization", ""))
    client = request.app.state.engine_client
    _check_gate(client)
    call = client.engine_core.call_utility_async
    if request.method == "GET":
        return await call("balance_policy")
    name = await _wanted(request)
    try:
        ranks = client.vllm_config.parallel_config
        check_ranks(name, ranks, ranks.is_moe_model)
    except ValueError as error:
        raise HTTPException(409, str(error)) from None
    # All ranks get the same number, and a later request has a larger one. Of two
    # operators who ask at once both may have the same.
    newest = (await call("balance_policy"))["ticket"]
    return await call("balance_policy", next_ticket(newest, name))


def _check_key(header: str) -> None:
    expected = f"Bearer {key_of(KEY)}"
    if not hmac.compare_digest(header.encode(), expected.encode()):
        raise HTTPException(401, f"expected the operators' key, the server's {KEY}")


def _check_gate(client: "EngineClient") -> None:
    if client.vllm_config.parallel_config.data_parallel_balance == "off":
        raise HTTPException(
            409,
            "this server was started with --data-parallel-balance off, and has nothing "
            "that could be switched; start it with a policy, and switch that off",
        )
    if only_decodes(client.vllm_config):
        raise HTTPException(
            409,
            "a decode instance (kv_consumer) holds nothing, so there is nothing to "
            "switch",
        )


async def _wanted(request: Request) -> str:
    """The policy that a request names; if it names none, it is refused."""
    try:
        name = (await request.json())["policy"]
    except (LookupError, TypeError, ValueError):
        name = None
    if name not in NAMES:
        choices = ", ".join(NAMES)
        raise HTTPException(400, f'expected {{"policy": NAME}}, one of {choices}')
    return str(name)
