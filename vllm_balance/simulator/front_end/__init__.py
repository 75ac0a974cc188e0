# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How a request gets to a rank: API servers, coordinator, load balancers."""
