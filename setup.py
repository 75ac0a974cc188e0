"""Builds the one wheel; tools/balance_tools/distribution.py says what can be chosen."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]

from setuptools import setup  # noqa: E402

from balance_tools.distribution import choice_from  # noqa: E402
from balance_tools.errors import ToolError  # noqa: E402
from balance_tools.paths import Paths  # noqa: E402
from balance_tools.wheel.plan import make_plan  # noqa: E402
from balance_tools.wheel.setup_arguments import setup_arguments  # noqa: E402

try:
    setup(**setup_arguments(make_plan(Paths(ROOT), choice_from(os.environ))))
except ToolError as error:
    sys.exit(f"error: {error}")
