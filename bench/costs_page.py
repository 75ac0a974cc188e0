# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What one step of balance scheduling costs, as sections of docs/results.md."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
Document = dict[str, Any]


def decision(document: Document, table: Table) -> str:
    """Time of a decision by policy and ranks."""
    return (
        "## Cost of a decision\n\n"
        "Median µs of one decision in the worst state of the policies.\n\n"
        + _by_policy(document, table)
        + _origin(document)
    )


def hook(document: Document, table: Table) -> str:
    """Time of the hook without the gather, by policy and ranks."""
    return (
        "## Cost of the hook without the gather\n\n"
        "Median µs per step: measuring 28 running and 32 waiting requests of a real "
        "scheduler, deciding, and being asked by `schedule`; in parentheses the share "
        "of a step of 36 ms.\n\n" + _by_policy(document, table) + _origin(document)
    )


def exchange(document: Document, table: Table) -> str:
    """Time of the gather by way and ranks."""
    ranks = sorted({row["ranks"] for row in document["results"]})
    ways = list(dict.fromkeys(row["way"] for row in document["results"]))
    found = {(row["way"], row["ranks"]): row for row in document["results"]}
    rows = [[way, *(_figure(found[way, count]) for count in ranks)] for way in ways]
    return (
        "## Cost of the gather\n\n"
        "Median µs on rank 0, and the share of a step of 36 ms. The ranks are "
        "processes of one machine; with fewer processors than ranks the operating "
        "system's scheduler is measured, not gloo. The last two rows are to be "
        "compared with each other: an early start saves up to a fifth where ranks "
        "share processors and next to nothing where they do not, and the decision "
        "would be on rows that are one step old. So the product does "
        "not start early.\n\n"
        + table(["", *(f"{count} ranks" for count in ranks)], rows)
        + _origin(document)
    )


def _by_policy(document: Document, table: Table) -> str:
    ranks = sorted({row["ranks"] for row in document["results"]})
    policies = list(dict.fromkeys(row["policy"] for row in document["results"]))
    found = {(row["policy"], row["ranks"]): row for row in document["results"]}
    rows = [[name, *(_figure(found[name, n]) for n in ranks)] for name in policies]
    return table(["", *(f"{count} ranks" for count in ranks)], rows)


def _figure(row: Document) -> str:
    text = (
        f"{row['median_us']:.0f}" if row["median_us"] >= 10 else f"{row['median_us']}"
    )
    share = row.get("share_of_a_36_ms_step")
    return text if share is None else f"{text} ({share:.1%})"


def _origin(document: Document) -> str:
    return (
        f"\n\n`{document['command']}`, Python {document['python']}, "
        f"{document['machine']}, load {document['load_average'][0]} before\n"
    )
