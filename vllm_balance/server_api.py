# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A server's HTTP API: its model, its policy, and its figures on /metrics."""

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from prometheus_client.parser import text_string_to_metric_families

from . import policy as policies
from .errors import UsageError
from .policy import address_of, cause, key_of, refusal

SECONDS = 30.0
GATE = "vllm:dp_balance_"
"""The beginning of the names of balance's metrics, which a server with off lacks."""
DECISIONS, COSTS = f"{GATE}decisions_total", f"{GATE}step_cost_seconds"
EXCHANGE_SUM, EXCHANGES = (f"{GATE}exchange_seconds_{x}" for x in ("sum", "count"))
STATISTICS = "vllm:num_requests_running"
"""A metric of vLLM, absent only with --disable-log-stats."""
READ = (STATISTICS, DECISIONS, COSTS, EXCHANGE_SUM, EXCHANGES)
"""The metrics that are read; parsing all those of 64 ranks takes a second."""
CLIENTS = "OPENAI_API_KEY"
CLIENT_KEY = f"set {CLIENTS}, or give a --header to the load"
REPAIRS = {
    401: CLIENT_KEY,
    403: CLIENT_KEY,
    404: "give the address of the server itself, without a path",
    503: "it is not ready, or one of its ranks has ended",
}


class OtherPolicyError(UsageError):
    """A server serves with another policy than expected."""


def go_past_proxies(url: str) -> None:
    """Makes this process, and `vllm bench serve` in it, call this server directly.

    A proxy does not know our loopback address, and an entry of the user's .netrc would
    replace the API key. Downloads still go through the proxy.
    """
    names = ("no_proxy", "NO_PROXY")
    hosts = [host for name in names if (host := os.environ.get(name))]
    if "*" not in hosts:
        hosts = [*dict.fromkeys(hosts), urlsplit(url).hostname or ""]
        os.environ.update(dict.fromkeys(names, ",".join(hosts)))
    os.environ["NETRC"] = os.devnull


class Scrape(NamedTuple):
    ranks: int
    exchange_us: float | None
    """The mean exchange on the rank that waits least, since the server started or was
    switched; None if there was no exchange."""
    costs: Mapping[str, float]
    """What `adaptive` has learned: seconds by part of a step, the mean of the ranks."""


class Endpoint:
    def __init__(
        self, url: str, header: Sequence[str] = (), insecure: bool = False
    ) -> None:
        """Asks nothing yet.

        Args:
            url: without a path.
            header: each as NAME=VALUE, as of `vllm bench serve`.
            insecure: whether certificates are not verified.
        """
        self.url = url.rstrip("/")
        address_of(url)
        self.watch: Callable[[], None] = lambda: None
        """Called about once a second while a load is sent; raises to end it."""
        key = _key(CLIENTS)
        self._before: _Counts | None = None
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        for text in header:
            name, _, value = text.partition("=")
            self.headers[name.strip()] = value.strip()
            if not (text.isascii() and value.strip().isprintable()):
                raise UsageError(
                    f"--header {name!a}: give one line of ASCII letters, digits "
                    "and signs."
                )
        self.verify = not insecure
        # The load's client knows this variable, and `requests` does not.
        verify = self.verify and (os.environ.get("SSL_CERT_FILE") or True)
        self._options: dict[str, Any] = {"headers": self.headers, "verify": verify}

    def problem(self) -> str:
        """Why the server is not ready; empty if it is."""
        url = f"{self.url}/v1/models"
        try:
            answer = requests.get(url, timeout=5, **self._options)
        except requests.RequestException as error:
            return f"{url}: no answer ({_cause(error)})"
        if answer.status_code in (401, 403):
            raise UsageError(f"{_refusal(url, answer)}.")
        return "" if answer.ok else _refusal(url, answer)

    def model(self) -> tuple[str, str]:
        """The name by which requests ask for the model, and its folder or hub name."""
        answer = self._get("/v1/models")
        try:
            model = answer.json()["data"][0]
            return str(model["id"]), str(model.get("root") or model["id"])
        except (AttributeError, LookupError, TypeError, ValueError):
            raise UsageError(
                f"{self.url}/v1/models: names no model; give the address of a server."
                f"{self.proxy_hint}"
            ) from None

    def ask(self) -> None:
        """Sends one short request, so that the policy takes a decision.

        Greedy, as not every server drafts for others.
        """
        body = {"model": self.model()[0], "prompt": "a", "max_tokens": 4}
        body["temperature"] = 0
        self._call("POST", "/v1/completions", json=body)

    def figures(self, policy: str | None = None) -> Scrape:
        """Reads /metrics.

        Args:
            policy: that it must serve with; any if None.
        """
        counts = _Counts(*(defaultdict(float) for _ in _Counts._fields))
        costs: dict[str, list[float]] = defaultdict(list)
        ranks, policies = set(), set()
        lines = self._get("/metrics").text.splitlines()
        has_gate = any(line.startswith(GATE) for line in lines)
        read = "\n".join(line for line in lines if line.startswith(READ))
        try:
            families = [*text_string_to_metric_families(read)]
        except ValueError:  # it is a page of something else
            families = []
        for family in families:
            for sample in family.samples:
                labels = sample.labels
                if sample.name == STATISTICS:
                    ranks.add(labels.get("engine"))
                elif sample.name == DECISIONS:
                    policies.add(labels["policy"])
                elif sample.name == COSTS:
                    costs[labels["part"]].append(sample.value)
                elif sample.name == EXCHANGE_SUM:
                    counts.seconds[labels["engine"]] += sample.value
                elif sample.name == EXCHANGES:
                    counts.exchanges[labels["engine"]] += sample.value
        if not ranks:
            raise UsageError(
                f"{self.url}/metrics: has no statistics of vLLM; serve without "
                "--disable-log-stats, and give the address of the server itself."
                f"{self.proxy_hint}"
            )
        serving = policies if has_gate else {"off"}
        if self._before is not None:
            counts = counts.since(self._before)
            # Ranks report with their answers, and so some decisions after the switch.
            serving = {self.policy()}
        self._counts = counts
        if policy is not None and serving != {policy}:
            names = " and ".join(sorted(serving)) or "none that has decided"
            raise OtherPolicyError(
                f"{self.url}/metrics: shows the policy {names}, not {policy}; nothing "
                "could be said of the comparison."
            )
        means = [
            1e6 * counts.seconds[rank] / count
            for rank, count in counts.exchanges.items()
            if count
        ]
        return Scrape(
            len(ranks),
            min(means, default=None),
            # All are 0 until the current policy has learned some.
            {part: statistics.fmean(values) for part, values in costs.items()}
            if any(map(any, costs.values()))
            else {},
        )

    def policy(self) -> str:
        return str(policies.ask(self.url, insecure=not self.verify)["policy"])

    def switch(self, policy: str) -> None:
        """Switches the server to a policy; `figures` then count from the switch."""
        policies.change(self.url, policy, insecure=not self.verify, send=self.ask)
        self._before = None
        self.figures()
        self._before = self._counts

    @property
    def proxy_hint(self) -> str:
        """A sentence for errors on a proxy that may have answered, or empty."""
        proxies = requests.utils.get_environ_proxies(self.url)
        proxy = requests.utils.select_proxy(self.url, proxies)
        if not proxy:
            return ""
        host = proxy.rpartition("//")[2].rpartition("@")[2]  # without a password
        return (
            f" It was asked through the proxy {host} of the "
            "environment, whose answer this may be; to go past it, add "
            f"{urlsplit(self.url).hostname} to NO_PROXY."
        )

    def _get(self, path: str) -> requests.Response:
        return self._call("GET", path)

    def _call(self, method: str, path: str, **extra: Any) -> requests.Response:
        url, options = self.url + path, self._options | extra
        try:
            answer = requests.request(method, url, timeout=SECONDS, **options)
        except requests.RequestException as error:
            raise UsageError(
                f"{url}: no answer ({_cause(error)}).{self.proxy_hint}"
            ) from None
        if not answer.ok:
            raise UsageError(f"{_refusal(url, answer)}.{self.proxy_hint}")
        return answer


def _key(variable: str) -> str:
    """A stripped key, also put back for `vllm bench serve`, which does not strip it."""
    try:
        key = key_of(variable)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    if key:
        os.environ[variable] = key
    return key


class _Counts(NamedTuple):
    seconds: dict[str, float]
    exchanges: dict[str, float]

    def since(self, before: "_Counts") -> "_Counts":
        return _Counts(
            *(
                {name: n - then.get(name, 0.0) for name, n in now.items()}
                for now, then in zip(self, before, strict=True)
            )
        )


def _refusal(url: str, answer: requests.Response) -> str:
    return refusal(url, answer.status_code, answer.reason, answer.text, REPAIRS)


def _cause(error: requests.RequestException) -> str:
    text = cause(error)
    return f"{text}, or add --insecure" if "SSL_CERT_FILE" in text else text
