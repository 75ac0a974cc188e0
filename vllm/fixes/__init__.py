# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Answers to published vulnerabilities, whatever the policy.

The patches `security-*.patch` call it. Each of them names its advisories.
"""
