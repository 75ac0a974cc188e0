"""The pages: links lead somewhere, commands are taken, and two READMEs agree.

Tables that are made of results are compared in `unit/bench/test_simulated.py`.
"""

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from operator import truediv
from pathlib import Path
from statistics import geometric_mean

import pytest
import yaml

import tables
from balance_tools.series.apply import load_series
from balance_tools.series.lint import LIMITS, SECURITY
from balance_tools.series.patchfile import ADDED
from vllm_balance import cli
from vllm_balance.simulator.step_time.presets import PRESETS
from vllm_balance.trial import command as command_of_trial

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FINDINGS = ROOT / "findings"
REPORTS = [*(ROOT / "docs/upstreaming").glob("*.md"), FINDINGS / "README.md"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *REPORTS])
PROMPT = re.compile(r"^(?:\w+)?[$#] (.*)$", re.M)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
PAIR = "adaptive", "off"
COMMAND = re.compile(r"\bvllm[-_]balance ((?:simulate|recommend|trial) .*)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page):
    """What a link can point to in a page: its headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in kept}


@each_page
def test_links_lead_to_files_and_headings(page):
    for file, heading in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
        target = page.parent / file if file else page
        assert target.exists(), file
        assert not heading or heading in anchors(target), f"{file}#{heading}"


def test_newcomers_find_every_page_from_the_readme():
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", README))
    pages = {str(page.relative_to(ROOT)) for page in PAGES if page not in REPORTS}
    assert pages - linked <= {"README.md"}


def test_each_finding_has_a_line():
    listed = re.findall(r"\]\(([\w-]+\.sh)\)", (FINDINGS / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in FINDINGS.glob("*.sh"))


def commands(page):
    """The commands of the blocks that show a console, continuation lines joined."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S)
    text = "\n".join(blocks).replace("\\\n", " ")
    return [re.sub(r"<[a-z' ]+>", "X", command) for command in PROMPT.findall(text)]


@each_page
def test_a_shell_make_the_disk_and_our_parsers_take_the_commands(page):
    found = commands(page)
    text = "\n".join(found)
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in found:
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= TARGETS, command
        for word in words:
            if re.match(r"(deploy|tools|docker|bench|tests)/[\w./@*-]+$", word):
                assert list(ROOT.glob(word)), word
        if ours := COMMAND.search(command):
            our_parser_takes(shlex.split(ours[1], comments=True))


def our_parser_takes(given):
    if given[0] == "trial":
        trial = command_of_trial.parse(given[1:])
        assert trial.serve or trial.args.deployment
        assert "--num-prompts" in trial.load
    else:
        assert cli.parser().parse_args(given)


def shown(page):
    """Of the commands that any Python runs in a clone, the output that is shown."""
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S):
        for part in f"\n{block}".split("\n$ "):
            command, _, output = part.replace("\\\n", " ").partition("\n")
            if command.startswith("python3 -m vllm_balance recommend") and output:
                yield shlex.split(command)[1:], output.strip()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/operations.md"])
def test_recommend_says_what_is_shown(page):
    ((options, output),) = shown(ROOT / page)
    command = [sys.executable, *options, "--disable-tqdm"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert output in done.stdout


def test_each_preset_of_a_device_is_for_some_model():
    page = (ROOT / "docs" / "models.md").read_text().partition("## Which preset")[2]
    named = {*re.findall(r"`(a\d-[\w-]+)`", page)}
    assert named == {name for name in PRESETS if name.startswith("a")}


def test_the_pages_name_one_range_of_pythons_for_each_target():
    text = "\n".join(page.read_text() for page in PAGES)
    found = {*re.findall(r"3\.\d+ to 3\.\d+", text)}
    assert found == {"3.10 to 3.13", "3.10 to 3.12"}
    assert sum(len(commands(page)) for page in PAGES) > 50, "commands are found"


def test_the_architecture_names_each_file_with_a_hook_for_balance():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## Where it hooks in")[2].partition("\nTwo hooks")[0]
    named = re.findall(r"`([\w/]+\.py)`", table)
    patches = (ROOT / "patches" / "vllm").glob("data-parallel-balance-*.patch")
    touched = {
        file
        for patch in patches
        for file in re.findall(r"^\+\+\+ b/vllm/(.*)$", patch.read_text(), re.M)
    }
    assert sorted(named) == sorted(touched)


def test_operators_go_back_when_the_alerts_fire():
    """After as long, and at the same thresholds."""
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (.*) \| (\d+) minutes \| `(\w+)` \|$", page, re.M)
    path = ROOT / "deploy" / "kubernetes" / "monitoring" / "alerts.yaml"
    (group,) = yaml.safe_load(path.read_text())["spec"]["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    thresholds = {"10 s": "> 10", "a tenth": "> 0.1 *", "20 ms": "> 0.02"}
    assert len(rows) == len(thresholds)
    for (what, minutes, name), (said, expression) in zip(
        rows, thresholds.items(), strict=True
    ):
        assert said in what
        assert expression in rules[name]["expr"]
        assert rules[name]["for"] == f"{minutes}m"


SCREEN = README.partition("\n## ")[0]
"""What a reader sees first."""


def figures(screen):
    """Of each row of a table and each item of a list the numbers, in any order."""
    rows = re.findall(r"^(?:\| |- ).*(?:\n {2}.*)*", screen, re.MULTILINE)
    number = re.compile(r"\d+(?:\.\d+)*")
    return [Counter(number.findall(re.sub(r"\]\([^)]*\)", "]", row))) for row in rows]


def test_the_chinese_readme_has_the_figures_of_the_english_one():
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    found = figures(chinese.partition("\n## ")[0])
    assert found == figures(SCREEN)
    assert sum(map(bool, found)) >= 7
    (advice,) = re.findall(r"^Use --data-parallel-balance .*", README, re.MULTILINE)
    assert advice in chinese


def test_the_readme_counts_patched_lines_and_vulnerabilities():
    patches = load_series(ROOT / "patches" / "vllm").patches
    hooks = [patch for patch in patches if not patch.name.startswith(SECURITY)]
    lines = sum(patch.count(ADDED) for patch in hooks)
    assert f"The hooks in vLLM are {lines} patched lines" in README
    rules = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"at most {LIMITS['vllm'][ADDED]} lines in the vLLM series" in rules
    answer = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    (fixed, still_open) = re.findall(r"(\d+) (?:are )?(?:fixed|open)", answer)[:2]
    assert f"**{fixed} published vulnerabilities fixed,**" in SCREEN
    assert f"[{still_open} are open]" in SCREEN


def test_the_readme_says_what_real_ranks_measured():
    """Means of the workloads, and the least and the most."""
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "bench" / "results").glob("real-*.json")
    }
    cells = [cell for _, cell in tables.measured(results)]
    latency = [cell["policies"]["adaptive"]["ratio"][0] for cell in cells]
    first = [
        truediv(*(tables.mean_of(cell, name, "median_ttft_ms") for name in PAIR))
        for cell in cells
    ]
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| all, .*\| (\S+)[^|]* \|$", page, re.M)
    for ratios, row in zip((latency, first), rows, strict=True):
        assert row == f"{geometric_mean(ratios):.2f}"
        assert f"{row}x" in SCREEN
        assert f"({min(ratios):.2f}x to {max(ratios):.2f}x)" in SCREEN
    assert f"over {len(cells)} workloads" in SCREEN
    closed = [x for x, cell in zip(first, cells, strict=True) if not cell["load"]]
    assert f"with all slots in use {geometric_mean(closed):.2f}x" in SCREEN
    closed = [x for x, cell in zip(latency, cells, strict=True) if not cell["load"]]
    mean = f"{geometric_mean(closed):.2f}x"
    assert f"{mean} in the {len(closed)} with all slots in use" in SCREEN
    open_loops = [number for number, cell in enumerate(cells) if cell["load"]]
    found, firsts = ([x[n] for n in open_loops] for x in (latency, first))
    expected = geometric_mean(cells[n]["predicted"]["adaptive"] for n in open_loops)
    assert (
        f"{geometric_mean(found):.2f}x ({min(found):.2f}x to {max(found):.2f}x), "
        f"simulated {expected:.2f}x; median TTFT {geometric_mean(firsts):.2f}x "
        f"({min(firsts):.2f}x to {max(firsts):.2f}x)"
    ) in SCREEN


def test_the_results_say_in_words_what_the_cells_show():
    several, alone = (
        json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())["cells"]
        for name in ("regimes", "one_rank")
    )
    said = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    leads = [tables.lead(cell) for cell in several]
    behind, far = (sum(lead < least for lead in leads) for least in (0, tables.BEHIND))
    assert (
        f"longer in {behind} of the {len(leads)} cells, by more than 2 % in {far}"
        in said
    )
    for policy, text in (
        (tables.LIMITED, "more than {:.1f} points of attainment below `off`"),
        ("adaptive", "(up to {:.0f} points)"),
    ):
        least = min(tables.points(cell, policy, "off") for cell in several)
        assert text.format(-least) in said
    random = tables.select(several, regime=tables.POISSON)
    for name in (tables.MEAN, tables.TAIL):
        with_limits, without = (
            f"{tables.mean_ratio(random, policy, 'off', name):.2f}x"
            for policy in (tables.LIMITED, "adaptive")
        )
        assert f"{with_limits} instead of {without}" in said
    none, some, most = (
        f"{tables.mean_ratio(cells, *PAIR):.2f}x"
        for _, cells in sorted(tables.groups(alone, "c").items())
    )
    assert f"latency is {most}, with 34 ms {some}, else {none}" in said
    tail = max(
        truediv(*(tables.figure(cell, n, tables.TAIL) for n in PAIR))
        for cell in several
    )
    assert f"TTFT p99: up to {tail:.2f}x" in README
