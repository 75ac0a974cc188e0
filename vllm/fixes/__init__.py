# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Faults of upstream that are fixed here, whatever `--data-parallel-balance` says.

Nothing here balances anything, and all that `off` needs is here. To remove a fix, drop
the lines of the patch that call it, then the function, its line here and its test.

| function | called by | upstream | needed by |
|---|---|---|---|
| server_end.begin_watch | ending.patch | not reported | all releases until 0.33 |
| server_end.end_with_engines | ending.patch | not reported | all |
| server_end.is_of_this_server | ending.patch | not reported | all |
| server_end.timeout_of | rank.start | the ranks need it | |
| orphans.end_with_parent | ending.patch, rank.start | not reported | all |
| orphans.reset_wakeup_fd_in_children | ending.patch | not reported | all |
| client_checks.check_client | tokens.patch | #45346, #54195 | all, for nesting |
| client_checks.drop_unknown_ends | survival.patch | not reported | all |
| client_checks.check_resize | survival.patch | not reported | all |

The patches are `data-parallel-balance-…`, and `security-stop-tokens.patch`; `rank` is a
room of the balance package.
Numbers are of issues and pull requests of vllm-project/vllm, and docs/upstreaming has
the text of what is not reported. Two fixes are a line in a patch alone: the exit status
of a host without an API server (ending.patch, not reported), and a resume of ranks that
are not paused (survival.patch, #55229, open).

The other `security-*.patch` call `bodies`, `media`, `grammars` with `trial`, and
`request_checks`, which share `limits`. Each says in its header which published
vulnerabilities it answers (`Advisory`), and which release needs it no more
(`Fixed-In`).
"""
