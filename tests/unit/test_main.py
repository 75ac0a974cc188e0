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


def test_a_command_needs_no_module_of_another(repo, tmp_path):
    hidden = repo.root / "tools" / "psutil.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError('no psutil', name='psutil')\n")
    code, out, _ = repo.run("vendor", "--only", "vllm")
    assert (code, out[:12]) == (0, "vllm 0.23.0:")
    code, _, err = repo.run("demo")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("error: psutil: expected this module for the tools")
