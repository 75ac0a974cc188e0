"""Serve a model on each release of a scan that everything fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.rebase.scan_rows import RUNS, ScannedRelease
from balance_tools.rebase.session import Work, work_root
from balance_tools.serving.env import make_env
from balance_tools.upstream.lock import Artifact, Lock, dump_lock
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.verify.serves import serves
from balance_tools.verify.verify import Bench, ReleaseUnderTest
from balance_tools.wheel.build import build_wheel


def run_rows(
    paths: Paths,
    lock: Lock,
    artifacts: Sequence[Artifact],
    rows: Sequence[ScannedRelease],
    newest: Sequence[str] = (),
) -> list[ScannedRelease]:
    """Serve on every release that was placed and checked, one at a time.

    What was done before with equal inputs is not done again.
    """
    base = make_env(paths, build_wheel(paths, Choice(), paths.dist)) / "bin" / "python"
    found = list(rows)
    wanted = [i for i, row in enumerate(rows) if row.checked]
    with progress("serving on releases", len(wanted), "release") as report:
        for done, index in enumerate(wanted, 1):
            artifact = artifacts[index]
            work = Work(work_root(paths) / "scan" / artifact.version)
            release = ReleaseUnderTest(
                name=f"scan-{artifact.version}",
                label=f"vllm {artifact.version}",
                lock=dump_lock(replace(lock, vllm=artifact)),
                series=work.final / "patches",
                tree=ensure_pristine(artifact, paths),
            )
            bench = Bench(paths, release, paths.build / "verify" / release.name)
            try:
                served = serves(bench, base, newest)
                said = RUNS if not served.failed else f"no: {served.failed[0]}"
                seconds = rows[index].seconds + served.tests.seconds
                instead = served.instead
            except ToolError as error:
                said, seconds, instead = f"no: {error}", rows[index].seconds, ""
            found[index] = replace(
                rows[index], runs=said, seconds=seconds, instead=instead
            )
            report(done)
    return found
