"""Virtual environments for tests, and what lies in them."""

import os
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    folder: Path

    @property
    def python(self):
        return self.folder / "bin" / "python"

    @property
    def packages(self):
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def run(self, *command, check=True):
        """Run a program of its bin folder, in no folder of ours."""
        result = subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
        )
        if check:
            assert result.returncode == 0, result.stdout + result.stderr
        return result

    def pip(self, *arguments, check=True):
        return self.run("python", "-m", "pip", *arguments, check=check)

    def install(self, *wheels, compiled=False):
        """Install without requirements, and without byte code unless `compiled`."""
        byte_code = "--compile" if compiled else "--no-compile"
        self.pip("install", "--quiet", "--no-deps", byte_code, *map(str, wheels))

    def listing(self):
        """Every file and folder in it, byte code of other packages left out."""
        return {
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if "__pycache__" not in path.parts or "vllm" in str(path)
        }

    def python_says(self, code):
        return self.run("python", "-c", code).stdout.strip()


def make_environment(folder, pip=None):
    """Create an environment; `pip` is a requirement such as `pip==23.2.1`."""
    venv.create(folder, with_pip=True)
    environment = Environment(folder)
    if pip is not None:
        environment.pip("install", "--quiet", "--upgrade", pip)
    return environment


def clean_environment():
    """The variables of this process without those that lead Python elsewhere."""
    return {
        key: value
        for key, value in os.environ.items()
        if key not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
