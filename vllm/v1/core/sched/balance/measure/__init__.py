# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a rank tells the others (`policies.rows`), read from its scheduler."""
