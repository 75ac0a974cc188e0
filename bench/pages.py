"""Writes docs/results.md from the JSON files in bench/results.

::

    python bench/pages.py [--check]

The text is in bench/templates; every number of a result comes from its file. A result
that was made with other policies than those of the code must be listed in
bench/older_results.toml, and the page says so.
"""

import argparse
import json
import re
import runpy
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import deployment_tables
import tables
import tomlkit
import trial_tables
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
OLDER = ROOT / "bench" / "older_results.toml"
PAGE = ROOT / "docs" / "results.md"
FINGERPRINT = ROOT / "vllm" / "benchmarks" / "dp_balance" / "fingerprint.py"
NO_POLICY = "off"
"""Stands for the policies of a result that depends on none."""

Document = dict[str, Any]


class PageError(Exception):
    """A page cannot be written, or is not up to date; the message says what to do."""


def load() -> dict[str, Document]:
    """Every result, by the name of its file.

    Raises:
        PageError: there is none.
    """
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }
    if not found:
        raise PageError(f"{RESULTS}: no results; make them with bench/simulated.py")
    return found


def policies_of(document: Document) -> str:
    """Hash of the policies that the result was made with."""
    versions = document.get("versions")
    return str(versions["balance"] if versions else document["policies"])


def check_age(
    results: Mapping[str, Document], older: Mapping[str, str], code: str
) -> None:
    """Compares the policies of every result with those of the code.

    Args:
        results: by name.
        older: by the name of a result that is known to be older, its day and why.
        code: hash of the policies of the code.

    Raises:
        PageError: a result is older and not listed, or listed and not older.
    """
    for name in sorted(results.keys() | older.keys()):
        if name not in results:
            raise PageError(f"{OLDER}: there is no result {name}; take it out")
        made_with = policies_of(results[name])
        if made_with == NO_POLICY:
            continue
        if made_with == code and name in older:
            raise PageError(f"{OLDER}: {name} was made again; take it out")
        if made_with != code and name not in older:
            raise PageError(
                f"{RESULTS / name}.json: made with policies {made_with}, those of the "
                f"code are {code}; make it again, or list it in {OLDER} with its day "
                "and why"
            )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(items: Iterable[Document], columns: Mapping[str, str]) -> str:
    """A row per item; by its head, each column is a format string of the fields."""
    forms = columns.values()
    rows = ([form.format_map(item) for form in forms] for item in items)
    return table(list(columns), rows).replace("None", "–")


def wrapped(page: str) -> str:
    """The page with its paragraphs filled anew, since numbers have come into them.

    Tables, headings and pictures take a line each, and lists stay as they are.
    """
    filled = [
        block
        if block.startswith(("|", "#", "!", "- "))
        else textwrap.fill(
            " ".join(block.split()), 98, break_long_words=False, break_on_hyphens=False
        )
        for block in re.split(r"\n{2,}", page.strip("\n"))
    ]
    return "\n\n".join(filled) + "\n"


def environment() -> Environment:
    """Where the templates come from, and what they can call."""
    made = Environment(
        loader=FileSystemLoader(ROOT / "bench" / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    made.filters["form"] = format
    made.filters["percent"] = lambda share, spec=".0f": f"{100 * share:{spec}} %"
    made.globals.update(table=table, table_of=table_of, policies_of=policies_of)
    made.globals.update(tables=tables, of_trials=trial_tables)
    made.globals.update(of_deployments=deployment_tables)
    return made


def page() -> str:
    """The page as it should be.

    Raises:
        PageError: a result is older than the policies and not listed as that.
    """
    results = load()
    older = tomlkit.parse(OLDER.read_text(encoding="utf-8")).unwrap()
    check_age(
        results, older, runpy.run_path(str(FINGERPRINT))["policies_fingerprint"]()
    )
    template = environment().get_template("results.md.jinja")
    return wrapped(template.render(results=results, older=older, **results))


def main() -> None:
    """Writes the page, or checks that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    try:
        text = page()
        if not check:
            PAGE.write_text(text, encoding="utf-8")
        elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            raise PageError(f"{PAGE} is not up to date; run python bench/pages.py")
    except (PageError, TemplateError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
