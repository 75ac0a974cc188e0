# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Limits that an operator may set by environment variables.

They have upstream's names where a release of vLLM has them. 0 means no limit.
"""

import os

from vllm import envs
from vllm.exceptions import VLLMValidationError


def limit(name: str, default: int) -> int:
    """The value of an environment variable, of which vLLM then does not warn.

    Raises:
        ValueError: it is no whole number; the server does not start.
    """
    value = os.environ.get(name, str(default))
    if name in os.environ:
        envs.environment_variables.setdefault(name, lambda: value)
    try:
        return int(value)
    except ValueError:
        raise ValueError(
            f"{name}: expected a whole number, 0 for no limit, found {value!r}; "
            "correct it or unset it"
        ) from None


def too_large(field: str, what: str, most: int, name: str) -> VLLMValidationError:
    """What a client gets, with status 400; `name` is the variable that sets it."""
    return VLLMValidationError(
        f"{field} {what}; this server takes at most {most} ({name})", parameter=field
    )
