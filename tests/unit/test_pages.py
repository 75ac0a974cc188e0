"""The pages: links lead somewhere, commands are taken, and two READMEs agree."""

import re
import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from vllm_balance import cli
from vllm_balance.trial import command as command_of_trial

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FINDINGS = ROOT / "findings"
REPORTS = [
    *sorted((ROOT / "docs" / "upstreaming").glob("*.md")),
    FINDINGS / "README.md",
]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *REPORTS])
PROMPT = re.compile(r"^(?:\w+)?[$#] (.*)$", re.M)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
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
    """It exits if it does not."""
    if given[0] == "trial":
        trial = command_of_trial.parse(given[1:])
        assert trial.serve or trial.args.deployment
        assert "--num-prompts" in trial.load
    else:
        assert cli.parser().parse_args(given)


def test_commands_were_found():
    assert sum(len(commands(page)) for page in PAGES) > 50


def test_the_pages_name_one_range_of_pythons_for_each_target():
    text = "\n".join(page.read_text() for page in PAGES)
    found = {*re.findall(r"3\.\d+ to 3\.\d+", text)}
    assert found == {"3.10 to 3.13", "3.10 to 3.12"}


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


def figures(text):
    """Of each section the numbers but those of links, and those of tables in order."""
    sections = re.split(r"^## .*$", re.sub(r"\]\([^)]*\)", "]", text), flags=re.M)
    tables = ["\n".join(re.findall(r"^\|.*", each, re.M)) for each in sections]
    number = re.compile(r"\d+(?:[.,]\d+)*")
    numbers = [Counter(number.findall(each)) for each in sections]
    return list(zip(numbers, map(number.findall, tables), strict=True))


def test_the_chinese_readme_has_the_figures_of_the_english_one():
    """Those of its five sections, which are the first ones."""
    chinese = figures((ROOT / "README.zh.md").read_text(encoding="utf-8"))
    assert len(chinese) == 5
    assert chinese == figures(README)[:5]
