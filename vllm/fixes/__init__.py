# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Faults of upstream that are mended here, whatever `--data-parallel-balance` says.

Nothing here balances anything, and all that `off` needs is here. To remove a fix, drop
the lines of the patch that call it, then the function, its line here and its test.

| function | called by | upstream | needed by |
|---|---|---|---|
| server_end.begin_watch | ending.patch | not reported | all releases until 0.33 |
| server_end.end_with_engines | ending.patch | not reported | all |
| server_end.is_of_this_server | ending.patch | not reported | all |
| orphans.end_with_parent | ending.patch, rank.gate | not reported | all |
| orphans.untie_forked_signals | ending.patch | not reported | all |
| survival.check_client | survival.patch | #45346, #54195 | until 0.29; nesting: all |
| survival.fails_alone | survival.patch | #43920 | until 0.29 |
| survival.drop_unknown_ends | server_end | not reported | all |
| survival.check_resize | survival.patch | not reported | all |
| timeouts.timeout_of | server_end, rank.gate | it serves the others | |

The patches are `data-parallel-balance-…`; `rank` is a room of the balance package.
Numbers are of issues and pull requests of vllm-project/vllm, and docs/upstreaming has
the text of what is not reported. Two fixes are a line in a patch alone: the exit status
of a host without an API server (ending.patch, not reported), and a resume of ranks that
are not paused (survival.patch, #55229, open).

What `security-*.patch` call answers published vulnerabilities: `bodies`, `media`,
`grammars` with `trial`, `request_checks`, and the `limits` of all. Each patch says in
its header which ones (`Advisory`) and which release mends it itself (`Mended-In`).
"""
