"""Only `rank/scheduler_writes.py` changes upstream's scheduler, queues and requests.

Any other file of `rank` may give its own objects new attributes, and change what it has
made itself: a name or an attribute of `self` that is only ever given a new object.
"""

import ast
import re

import pytest

from conftest import FOLDER

OTHERS = sorted(p for p in FOLDER.glob("rank/*.py") if p.stem != "scheduler_writes")
CHANGES = re.compile(
    "add|append(left)?|clear|discard|extend(left)?|insert|move_to_end|pop(item|left)?"
    "|remove|reverse|rotate|setdefault|update"
    # Of upstream's queues, requests and scheduler.
    "|add_request|append_output_token_ids|finish_requests|pop_request"
    "|prepend_requests?|remove_requests?"
)
"""Methods that change what they are called on."""
NEVER = {"__setattr__", "__delattr__", "__setitem__", "__dict__", "sort"}
"""Nor is anybody else asked to `sort` a queue."""
BY_NAME = {"setattr", "delattr", "vars"}
MAKERS = {"Counter", "deque", "dict", "list", "set", "sha256", "sorted"}
MADE = re.compile("(List|Dict|Set)(Comp)?|Constant")
"""Names of expressions in `ast`."""


def is_new(value):
    """Whether nobody else can have what an expression makes."""
    if isinstance(value, ast.BinOp):
        return is_new(value.left)
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2]
        return name in MAKERS or name.lstrip("_")[:1].isupper()
    return bool(MADE.fullmatch(type(value).__name__))


def own(scope):
    """What is only ever given a new object in a function or class."""
    new, others = set(), set()
    for node in ast.walk(scope):
        if isinstance(node, ast.arg):
            others.add(node.arg)
        elif isinstance(node, (ast.For, ast.comprehension)):
            others |= {ast.unparse(each) for each in ast.walk(node.target)}
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            others.add(ast.unparse(node.optional_vars))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if not isinstance(target, ast.Tuple):
                    pairs = [(target, node.value)]
                elif isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=True)
                else:
                    pairs = [(each, node.value) for each in target.elts]
                for each, value in pairs:
                    (new if is_new(value) else others).add(ast.unparse(each))
    return new - others


def changed(node):
    """Of which objects a statement or call changes attributes or elements."""
    targets = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func] if CHANGES.fullmatch(node.func.attr) else []
    flat = [each for target in targets for each in getattr(target, "elts", [target])]
    for each in flat:
        if isinstance(each, (ast.Attribute, ast.Subscript)):
            base = each.value
            while isinstance(base, ast.Subscript):
                base = base.value
            yield ast.unparse(base)


def violations(source):
    tree, allowed = ast.parse(source), {}
    for scope in ast.walk(tree):  # a scope inside comes later
        if isinstance(scope, (ast.FunctionDef, ast.ClassDef)):
            is_class = isinstance(scope, ast.ClassDef)
            names = {n for n in own(scope) if n.startswith("self.") == is_class}
            for node in ast.walk(scope):
                allowed[node] = allowed.get(node, {"self"}) | names
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in NEVER:
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            yield ast.unparse(node)
        if {*changed(node)} - allowed.get(node, set()):
            yield ast.unparse(node)


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_nothing_else_changes_what_it_was_given(path):
    assert not [*violations(path.read_text())]


@pytest.mark.parametrize(
    "line",
    [
        "scheduler.prefill_capacity_bound = False",
        "self._scheduler.waiting = []",
        "self._scheduler.waiting.popleft()",
        "self._waiting.popleft()",
        "queue.prepend_request(request)",
        "request.status, other = 1, 2",
        "scheduler.requests['a'] = request",
        "del scheduler.requests['a']",
        "request.num_computed_tokens += 1",
        "for each in scheduler.waiting: each.status = 1",
        "waiting = scheduler.waiting; waiting.clear()",
        "setattr(request, 'status', 1)",
        "vars(request).update(status=1)",
        "self._order.sort(scheduler.waiting)",
    ],
)
def test_a_change_is_found_wherever_it_is(line):
    source = (
        "class Gate:\n"
        "    def __init__(self, scheduler):\n"
        "        self._waiting = scheduler.waiting\n"
        "        self._order = Order()\n"
        "        self._held = []\n"
        "    def act(self, scheduler, queue, request):\n"
        "        self._held.append(request)\n"
        f"        {line}\n"
    )
    assert {*violations(source)}
