"""With `--slowest SUITE` a suite fails whose slowest tests take twice what they took.

`tests/slowest.json` has what a suite and the slowest of its tests took, in seconds, on
two cores. A slow machine is no failure: what is allowed grows with the time of the
whole suite, or with the median of the tests that are known.
"""

import json
import statistics
import time
from collections import Counter
from pathlib import Path

TABLE = Path(__file__).parents[2] / "slowest.json"
LEAST_S, MOST = 10.0, 10
"""What is added to what is allowed, as noise, and how many tests are looked at."""


def pytest_addoption(parser):
    parser.addoption("--slowest", metavar="SUITE", help="compare with slowest.json")


def pytest_configure(config):
    suite = config.getoption("--slowest", None)
    if suite and not hasattr(config, "workerinput"):
        known = json.loads(TABLE.read_text(encoding="utf-8"))[suite]
        config.pluginmanager.register(Slowest(known["suite"], known["tests"]))


class Slowest:
    def __init__(self, suite_s, tests):
        self._suite_s, self._tests, self._late = suite_s, tests, []
        self._took, self._start = Counter(), time.monotonic()

    def pytest_runtest_logreport(self, report):
        self._took[report.nodeid.removeprefix("tests/")] += report.duration

    def pytest_sessionfinish(self, session):
        self._late = late(
            self._suite_s, self._tests, time.monotonic() - self._start, self._took
        )
        if self._late and session.exitstatus == 0:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        for line in self._late:
            terminalreporter.write_line(line, red=True)


def late(suite_s, tests, took_s, took):
    """A line for each of the slowest tests that took more than is allowed.

    A test that is not known may take what the quickest of the known takes.
    """
    ratios = [took[name] / seconds for name, seconds in tests.items() if name in took]
    slower = max(1.0, took_s / suite_s, statistics.median(ratios) if ratios else 1.0)
    lines = []
    for name, seconds in Counter(took).most_common(MOST):
        allowed = 2 * slower * tests.get(name, min(tests.values())) + LEAST_S
        if seconds > allowed:
            lines.append(
                f"{name}: took {seconds:.0f} s, of which {allowed:.0f} are allowed; "
                f"make it faster, or write what it takes into tests/{TABLE.name}"
            )
    return lines
