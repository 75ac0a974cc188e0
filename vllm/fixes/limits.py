# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Limits that an operator may set by environment variables.

They have upstream's names where a release of vLLM has them. 0 means no limit.
"""

import os
from typing import Any

from vllm import envs
from vllm.exceptions import VLLMValidationError


def limit(name: str, default: int) -> int:
    """The value of an environment variable, of which vLLM then does not warn."""
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


class RefusalError(VLLMValidationError):
    """A refusal whose text the client gets with status 400, as it is."""


def too_large(field: str, what: str, most: int, name: str) -> RefusalError:
    """The refusal of a `field` that passes the limit which the variable `name` sets."""
    return RefusalError(
        f"{field} {what}; this server takes at most {most} ({name})", parameter=field
    )


def keep_only_refusal(exc: Any, errors: Any) -> tuple[Any, Any]:
    """The `RefusalError` alone, if one is among the errors.

    Upstream's answer repeats the input of each error, also a body that is too large.
    """
    for error in errors:
        refusal = error.get("ctx", {}).get("error")
        if isinstance(refusal, RefusalError):
            return refusal, []
    return exc, errors
