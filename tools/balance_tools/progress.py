"""Progress of something long: a bar on a terminal, one line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Show `title`; yields a function to be called with the units done so far."""
    if sys.stderr.isatty():
        with tqdm(
            desc=title, total=total, unit=unit, unit_scale=True, leave=False
        ) as bar:
            yield lambda done: bar.update(done - bar.n)
    else:
        print(title, file=sys.stderr)
        yield lambda done: None
