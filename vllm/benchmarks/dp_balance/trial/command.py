# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`trial`: the command, and what it refuses before anything starts."""

import argparse
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ..errors import UsageError
from ..policies import OWN, PolicySpec, make_controller
from ..results import versions
from . import report
from .endpoint import Endpoint
from .load import connection
from .load_options import load_from, shown
from .plan import Plan, plan_of
from .server import Server, refuse_port_in_use
from .steps import write_logging_config
from .turns import Folder, Turn, order, run

VERB = "trial"
USAGE = (
    "vllm bench dp-balance trial [options] [load] -- vllm serve MODEL …\n"
    "       vllm bench dp-balance trial [options] [load] --deployment off=URL "
    "--deployment adaptive=URL"
)
LOAD_HELP = (
    "The load is what `vllm bench serve` takes: --dataset-name, --num-prompts, "
    "--request-rate, --max-concurrency and so on, passed on. With --replay a trace is "
    "sent at its own times, and sessions a think time after each answer, with the "
    "options of `simulate`."
)
POLICY_FLAG, DETAILS_FLAG = (
    "--data-parallel-balance",
    "--enable-logging-iteration-details",
)
INTERRUPTED = 130


class Given(NamedTuple):
    """The command line, in its parts."""

    args: argparse.Namespace
    load: Sequence[str]
    serve: Sequence[str]


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options, and takes the words that are those of other commands.

    vLLM's parser would change what follows `--`, and refuse what `vllm bench serve`
    takes.
    """
    parser.usage, parser.epilog = USAGE, LOAD_HELP
    _add_own(parser)
    parser.set_defaults(words=[])
    if sys.argv[1:4] == ["bench", "dp-balance", VERB]:
        own = sys.argv[4 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[4:]
        if not {"-h", "--help"} & set(own):
            parser.set_defaults(words=sys.argv[4:])
            del sys.argv[4:]


def _add_own(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "Compared in turn, the first with all others (default: off adaptive). "
    text += "Parameters follow a colon: adaptive:ttft_budget=2."
    add("--policy", nargs="+", metavar="NAME", help=text)
    text = "A server that runs already, instead of a command; once for each policy."
    add("--deployment", action="append", default=[], metavar="POLICY=URL", help=text)
    text = "Options of `vllm serve` for one policy alone, as one word."
    add("--options", action="append", default=[], metavar="POLICY=WORDS", help=text)
    text = "Turns of each policy (default: 3). More can be asked for later."
    add("--rounds", type=int, default=3, help=text)
    text = "Keeps the turns, and gets the report (default: dp-balance-trial)."
    add("--result-dir", type=Path, default=Path("dp-balance-trial"), help=text)
    text = "Seconds that a server may take to get ready (default: 1800)."
    add("--ready-timeout", type=float, default=1800.0, help=text)
    add("--show-model", action="store_true", help="Name the model in the report.")
    add("--replay", action="store_true", help="Send a trace or sessions ourselves.")
    text = "Lengths of a replay are divided by it, for a slow device (default: 1)."
    add("--length-divisor", type=int, default=1, help=text)
    add("--disable-tqdm", action="store_true", help="Disable the progress bars.")


def parse(words: Sequence[str]) -> Given:
    """Divides the words into our options, those of the load, and the command."""
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog=USAGE, add_help=False, allow_abbrev=False)
    _add_own(parser)
    args, load = parser.parse_known_args(list(words[:at]))
    return Given(args, load, words[at + 1 :])


def main(args: argparse.Namespace) -> None:
    """Runs the trial, or goes on with it, and writes the report.

    Raises:
        UsageError: something is refused, or a turn failed.
    """
    try:
        with _ended_like_ctrl_c():
            _main(parse(args.words))
    except KeyboardInterrupt:
        print(
            "interrupted: finished turns are kept; run the same command to go on",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)


def _main(given: Given) -> None:
    args = given.args
    deployments = _deployments(given)
    policies = _policies(args, deployments)
    if args.rounds < 1:
        raise UsageError(f"--rounds {args.rounds}: give 1 or more.")
    options = _options(args, policies)
    plan = Plan() if deployments else _plan(given.serve, policies, options)
    load = load_from(given.load, args)
    headers, verify = connection(load)
    endpoints = {
        policy: Endpoint(url, headers, verify) for policy, url in deployments.items()
    }
    if endpoints:
        for policy, endpoint in endpoints.items():
            endpoint.ask()
            endpoint.refuse_other_policy(policy)
        serve: _Deployed | _Started = _Deployed(endpoints)
    else:
        refuse_port_in_use(plan.url)
        endpoint = Endpoint(plan.url, headers, verify)
        serve = _Started(given.serve, options, endpoint, args.ready_timeout)
    folder = Folder(args.result_dir)
    what = {
        "load": [*given.load, args.replay, args.length_divisor],
        "serve": _without_port(given.serve),
        "deployments": deployments,
        "policies": policies,
        "options": options,
        "versions": versions(),
    }
    folder.prepare(what)
    serve.folder = folder
    turns = order(policies, args.rounds)
    results = run(folder, turns, serve, load, not args.disable_tqdm)
    about = {"command": shown(given.load, given.serve, policies, args)}
    model = None
    if args.show_model:
        model = plan.model or next(iter(endpoints.values())).model()[1]
    report.write(folder, turns, results, load, plan, about, model)


def _without_port(words: Sequence[str]) -> list[str]:
    """Another port makes no other trial."""
    pairs = zip(["", *words], words, strict=False)
    ports = ("--port", "--port=")
    return [w for before, w in pairs if before != "--port" and not w.startswith(ports)]


def _policies(args: argparse.Namespace, deployments: dict[str, str]) -> list[str]:
    policies = args.policy or list(deployments) or ["off", "adaptive"]
    for policy in policies:
        if PolicySpec.parse(policy).name not in OWN:
            raise UsageError(f"--policy {policy}: a server has {', '.join(OWN)}.")
        make_controller(policy)
    names = [PolicySpec.parse(policy).name for policy in policies]
    if len(set(names)) < max(2, len(names)):
        raise UsageError(
            f"--policy {' '.join(policies)}: give two or more different ones."
        )
    if deployments and set(policies) != set(deployments):
        raise UsageError(
            f"--policy {' '.join(policies)}: --deployment names "
            f"{', '.join(deployments)}; leave --policy out."
        )
    return list(policies)


def _deployments(given: Given) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given.args.deployment:
        policy, equals, url = text.partition("=")
        if not equals or not url.startswith(("http://", "https://")) or policy in found:
            raise UsageError(
                f"--deployment {text}: give POLICY=http://HOST:PORT, each policy once."
            )
        found[policy] = url
    if bool(found) == bool(given.serve):
        raise UsageError(
            "trial: give either `-- vllm serve MODEL …` or --deployment POLICY=URL for "
            "each policy, and not both."
        )
    return found


def _options(args: argparse.Namespace, policies: Sequence[str]) -> dict[str, list[str]]:
    """By policy, the words that the command gets for it."""
    found = {policy: _policy_words(policy) for policy in policies}
    for text in args.options:
        policy, equals, words = text.partition("=")
        if not equals or policy not in found or args.deployment:
            raise UsageError(
                f"--options {text}: give POLICY=WORDS with one of "
                f"{', '.join(policies)}, and a command that they are for."
            )
        more = shlex.split(words)
        _refuse_void(more)
        found[policy] += more
    return found


def _plan(
    serve: Sequence[str], policies: Sequence[str], options: Mapping[str, Sequence[str]]
) -> Plan:
    _refuse_void(serve)
    print("looking at the command", file=sys.stderr, flush=True)
    active = next(policy for policy in policies if policy != "off")
    return plan_of([*serve, *options[active]])


def _refuse_void(words: Sequence[str]) -> None:
    """Looks for what would leave nothing to compare.

    Raises:
        UsageError: it is there.
    """
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if name in (POLICY_FLAG, f"{POLICY_FLAG}-ttft"):
            raise UsageError(
                f"{name}: leave it out of the command; --policy says what is served."
            )
        if name == "--disable-log-stats":
            raise UsageError(
                f"{name}: nothing could be said of the policies without statistics; "
                "leave it out of the command."
            )


def _policy_words(policy: str) -> list[str]:
    spec = PolicySpec.parse(policy)
    words = [POLICY_FLAG, spec.name]
    if spec.ttft_budget is not None:
        words += [f"{POLICY_FLAG}-ttft", f"{spec.ttft_budget:g}"]
    return words


class _Deployed:
    """Servers that run already."""

    def __init__(self, endpoints: dict[str, Endpoint]) -> None:
        self._endpoints = endpoints
        self.folder: Folder

    @contextmanager
    def __call__(self, turn: Turn, path: Path) -> Iterator[Endpoint]:
        """That of the turn's policy."""
        yield self._endpoints[turn.policy]


class _Started:
    """Starts the command for each turn, and ends it."""

    def __init__(
        self,
        command: Sequence[str],
        options: Mapping[str, Sequence[str]],
        endpoint: Endpoint,
        limit_s: float,
    ) -> None:
        self._command = list(command)
        if DETAILS_FLAG not in command:
            self._command.append(DETAILS_FLAG)
        self._options, self._endpoint, self._limit_s = options, endpoint, limit_s
        self.folder: Folder

    @contextmanager
    def __call__(self, turn: Turn, path: Path) -> Iterator[Endpoint]:
        """The server of the turn."""
        steps, config = path.with_suffix(".steps"), path.with_suffix(".logging.json")
        steps.unlink(missing_ok=True)
        self.folder.guarded(write_logging_config, config, steps.resolve())
        refuse_port_in_use(self._endpoint.url)
        with Server(
            [*self._command, *self._options[turn.policy]],
            path.with_suffix(".server.log"),
            {"VLLM_LOGGING_CONFIG_PATH": str(config.resolve())},
        ) as server:
            server.wait_until_ready(self._endpoint, self._limit_s)
            self._endpoint.watch = server.refuse_ended
            try:
                yield self._endpoint
            except UsageError:
                server.refuse_ended()
                raise


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, and the end of the terminal, stop a trial as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
