import importlib

import pytest

from balance_tools.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_module(command, capsys):
    module, summary = COMMANDS[command]
    assert callable(importlib.import_module(f"balance_tools.{module}").run)
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert summary in " ".join(capsys.readouterr().out.split())


def test_a_module_that_is_not_there_is_one_line(repo):
    hidden = repo.root / "tools" / "unidiff.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError('no unidiff', name='unidiff')\n")
    code, _, err = repo.run("demo")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("error: unidiff: expected this module for the tools")
