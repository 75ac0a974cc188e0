# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`trial`: the command, and what it refuses before anything starts."""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tqdm import tqdm

from ..errors import UsageError
from ..policy import KEY
from ..server_api import Endpoint, go_past_proxies
from ..simulator.arguments import real
from ..simulator.policies import BALANCE, server_options
from . import report
from .load import Load, Parser
from .serving import Deployments, OwnServer, ServerPlan
from .switchback import Show, Switchback, Times, names_of, served_name
from .verdict import LEAST_BLOCKS

VERB = "trial"
USAGE = f"vllm-balance {VERB} [options] [load]"
USAGE = f"{USAGE} -- vllm serve MODEL …\n       {USAGE} --deployment URL"
LOAD_HELP = (
    "The load is what `vllm bench serve` takes: --dataset-name, --num-prompts, "
    "--request-rate, --max-concurrency and so on."
)
INTERRUPTED = 130
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CommandLine(NamedTuple):
    """The options of the trial, those of the load, and the server's command."""

    args: argparse.Namespace
    load: Sequence[str]
    serve: Sequence[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `trial`, for its help; `args.words` has the command line."""
    parser.usage, parser.epilog = USAGE, LOAD_HELP
    add = parser.add_argument
    text = "The first is compared with all others (default: off adaptive)."
    add("--policy", nargs="+", metavar="NAME", help=text)
    text = "A server that runs already, instead of a command. Of one URL its policy is "
    text += f"switched, with the key in {KEY}; or one for each policy, POLICY=URL."
    add("--deployment", action="append", default=[], metavar="URL", help=text)
    text = "Start a server for each stretch, instead of one that is switched: each "
    text += "policy then has its own dispatch, off that of vLLM."
    add("--restart", action="store_true", help=text)
    text = "The trial ends after these, or before if it is known which policy is "
    text += f"better, but not before {LEAST_BLOCKS} blocks."
    add("--minutes", type=real(0, 1e5, above=True), default=10.0, help=text)
    text = "It does not end before these (default: a third of --minutes)."
    add("--least-minutes", type=real(0, 1e5), help=text)
    text = "Seconds with a policy (default: three times what an answer takes, or six "
    text += "times and 60 or more at a rate or a trace's times; with --restart 60)."
    add("--stretch", type=real(0, 1e5, above=True), metavar="SECONDS", help=text)
    text = "Gets the report; has none yet."
    add("--result-dir", type=Path, default=Path("dp-balance-trial"), help=text)
    text = "Seconds that a server may take to get ready."
    add("--ready-timeout", type=real(0, 1e6), default=1800.0, help=text)
    add("--show-model", action="store_true", help="Name the model in the report.")
    add("--disable-tqdm", action="store_true", help="Disable the progress bar.")


def parse(arguments: Sequence[str]) -> CommandLine:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = Parser(USAGE, add_help=False, allow_abbrev=False)
    add_arguments(parser)
    args, load = parser.parse_known_args(list(arguments[:end]))
    return CommandLine(args, load, arguments[end + 1 :])


def run(args: argparse.Namespace) -> None:
    """Runs the trial, and writes the report.

    Raises:
        UsageError: something is refused, or the trial failed.
    """
    # Also Ctrl-C, which asyncio tells its task at the next await, maybe much later.
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

    def interrupt(*_: object) -> None:
        # A second one, as of a group and of its leader, would keep us from stopping
        # the server that asyncio's clean-up is about to stop.
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)
    trial(parse(args.words))


def trial(command_line: CommandLine) -> None:
    """Checks the command line, runs the stretches and writes the report.

    Raises:
        UsageError: something is refused, or the trial failed.
    """
    args = command_line.args
    deployments = _deployments(command_line)
    policies = _policies(args, deployments)
    served = list(dict.fromkeys(map(served_name, policies)))
    folder: Path = args.result_dir
    _refuse_taken(folder)
    plan = None if deployments else planned(command_line.serve, served)
    load = Load(command_line.load, folder / "load.log")
    urls = deployments or dict.fromkeys(served, plan.url if plan else "")
    endpoints = _endpoints(urls, load, plan)
    endpoint = endpoints[served[0]]
    site: OwnServer | Deployments = (
        Deployments(endpoints)
        if plan is None
        else OwnServer(plan, endpoint, folder, args.ready_timeout, args.restart)
    )
    if plan is None:
        load.find_tokenizer(endpoint)
    (folder / "report").mkdir(parents=True, exist_ok=True)
    shortest = args.minutes / 3 if args.least_minutes is None else args.least_minutes
    times = Times(60 * shortest, 60 * args.minutes, args.stretch)
    switchback = Switchback(site, load, policies, times)
    is_interrupted = False
    with site, progress(hidden=args.disable_tqdm) as show:
        try:
            asyncio.run(switchback.run(show))
        except (KeyboardInterrupt, asyncio.CancelledError):
            is_interrupted = True
    if switchback.judged.blocks > 1:
        about = {"command": shown(command_line, policies), "device": plan and _device()}
        about["dispatch"] = _dispatch(args.restart, deployments)
        if args.show_model:
            about["model"] = shown_model(plan.model if plan else endpoint.model()[0])
        report.write(folder, switchback, about)
    if is_interrupted:
        text = "interrupted: the report, if any, is of the blocks that had ended"
        print(text, file=sys.stderr)
        sys.exit(INTERRUPTED)


def _refuse_taken(folder: Path) -> None:
    """Refuses a folder that has anything but a trial without a report."""
    is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    reports = folder / "report"
    is_begun = reports.is_dir() and not any(reports.iterdir())
    if not (is_empty or is_begun):
        raise UsageError(
            f"--result-dir {folder}: has something already; give another folder, or "
            "move it."
        )


def _dispatch(restarts: bool, deployments: Mapping[str, str]) -> str:
    """Which rank gets a request, in words."""
    if restarts or len({*deployments.values()}) > 1:
        return "each policy's own"
    return "that of the server, the same for all policies"


@contextlib.contextmanager
def progress(hidden: bool) -> Iterator[Show]:
    """A progress bar, with a function that sets its text and share."""
    out = sys.stderr if sys.stderr.isatty() else sys.stdout
    with tqdm(total=100, file=out, disable=hidden or None, bar_format=BAR) as bar:

        def show(text: str, share: float) -> None:
            bar.n = round(100 * min(1.0, share))
            bar.set_description_str(text)

        yield show


BAR = "{percentage:3.0f}%|{bar:20}| {elapsed} {desc}"


def _endpoints(
    urls: Mapping[str, str], load: Load, plan: ServerPlan | None
) -> dict[str, Endpoint]:
    """Each policy's server; policies with the same address share one `Endpoint`."""
    if plan is not None and plan.url.startswith("https:"):
        # The trial starts this server; its certificate does not name loopback.
        load.args.insecure = True
    connection_options = load.args.header or (), load.args.insecure
    by_url = {url: Endpoint(url, *connection_options) for url in urls.values()}
    for url in by_url:
        if plan is not None or urlsplit(url).hostname in LOOPBACK:
            go_past_proxies(url)
    return {policy: by_url[url] for policy, url in urls.items()}


def _device() -> str:
    """The name of the first chip, read after the server has ended."""
    from vllm.platforms import current_platform

    with contextlib.suppress(Exception):  # of any driver
        return str(current_platform.get_device_name())
    return "unknown"


def _policies(args: argparse.Namespace, deployments: Mapping[str, str]) -> list[str]:
    policies = args.policy or list(deployments) or ["off", "adaptive"]
    for policy in policies:
        server_options(policy)
    if len(policies) < 2:
        raise UsageError(f"--policy {' '.join(policies)}: give two or more.")
    return names_of(policies)


def _deployments(command_line: CommandLine) -> dict[str, str]:
    urls: dict[str, str] = {}
    texts: list[str] = command_line.args.deployment
    if len(texts) == 1 and "://" in texts[0].partition("=")[0]:
        policies = command_line.args.policy or ["off", "adaptive"]
        texts = [f"{policy}={texts[0]}" for policy in dict.fromkeys(policies)]
    elif command_line.args.policy and texts:
        raise UsageError("--policy: leave it out; --deployment says which there are.")
    for text in texts:
        policy, _, url = text.partition("=")
        if not re.match(r"https?://\S", url) or policy in urls:
            raise UsageError(
                f"--deployment {text}: give http://HOST:PORT of a server to switch, or "
                "POLICY=http://HOST:PORT, each policy once."
            )
        Endpoint(url)  # refuses what is no address
        urls[policy] = url
    if bool(urls) == bool(command_line.serve):
        raise UsageError(
            f"{VERB}: give either `-- vllm serve MODEL …` or a --deployment, and not "
            "both."
        )
    return urls


def planned(serve: Sequence[str], policies: Sequence[str]) -> ServerPlan:
    """The server that a command would start.

    The doctor parses it: what is wrong is said before anything starts.

    Raises:
        UsageError: vLLM, or balance scheduling, refuses it, or no load could be sent
            to it.
    """
    # In the wheel, as this is; a checkout may lack what it needs.
    from vllm_balance.build_info import load_build_info
    from vllm_balance.doctor.machine import Machine
    from vllm_balance.doctor.plan import Plan
    from vllm_balance.doctor.serve import plan_of

    for word in serve:
        name = word.partition("=")[0].replace("_", "-")
        if name == BALANCE:
            raise UsageError(f"{name}: leave it out; --policy says what is served.")
        if name == "--disable-log-stats":
            raise UsageError(f"{name}: leave it out; the policies could not be seen.")
    print("looking at the command", file=sys.stderr, flush=True)
    active = next((policy for policy in policies if policy != "off"), "adaptive")
    machine = Machine(Path("/"), dict(os.environ), load_build_info(), Plan())
    try:
        server, diagnoses = plan_of(machine, [*serve, *server_options(active)])
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    if bad := [diagnosis for diagnosis in diagnoses if diagnosis.state == "bad"]:
        raise UsageError(f"vllm serve: {bad[0].found}; {bad[0].do}.")
    if server.unasked:
        raise UsageError(
            f"{server.unasked}: leave it out; requests could not be sent to the "
            "server, or the policies not be seen."
        )
    host, port, options = server.host, server.port, []
    if server.uds:  # to which `vllm bench serve` cannot send
        host = "127.0.0.1"
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
        options = ["--uds=", "--host", host, "--port", str(port)]
        instead = f"the load goes to {host}:{port} instead"
        print(f"note: --uds {server.uds}: {instead}", file=sys.stderr)
    if not port:
        raise UsageError("--port 0: could be any; give the port.")
    host = host if host not in ("", "0.0.0.0") else "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if server.is_https else "http"
    return ServerPlan([*serve, *options], f"{scheme}://{host}:{port}", server.model)


def shown_model(name: str) -> str:
    """A model's name as the report has it: of a folder the last part."""
    is_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists()
    return name if is_name else Path(name).resolve().name


PRIVATE = re.compile(r"host|port|address|url|ip\b|key|header|name|path|dir|model$")
PUBLIC = re.compile(r"--(dataset-name|dtype|quantization|kv-cache-dtype)")
NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?|inf", re.IGNORECASE)


def shown(command_line: CommandLine, policies: Sequence[str]) -> str:
    """The command as the report has it: options, and of their values only numbers.

    No model, prompt, address, host or path is in it.
    """
    args, load, serve = command_line
    parts = ["vllm-balance trial --policy", *map(served_name, policies)]
    parts.append(f"--minutes {args.minutes:g}")
    parts += [f"--stretch {args.stretch:g}"] if args.stretch else []
    parts += ["--restart"] * args.restart
    parts += _harmless(load)
    if serve:
        start = [*serve].index("serve") + 1 if "serve" in serve else 0
        parts += ["-- vllm serve MODEL", *_harmless(serve[start:])]
    return " ".join(parts)


def _harmless(arguments: Iterable[str]) -> list[str]:
    """Options with their numbers; other values as `…`."""
    shown_parts: list[str] = []
    for value in arguments:
        if re.match(r"--?[A-Za-z]", value):
            option, equals, value = value.partition("=")
            option = option.partition(".")[0].replace("_", "-")
            shown_parts.append(option)
            if not equals:
                continue
        if shown_parts:  # an argument before any option is the model
            number = NUMBER.fullmatch(value) and not PRIVATE.search(option)
            shown_parts.append(value if number or PUBLIC.fullmatch(option) else "…")
    return shown_parts
