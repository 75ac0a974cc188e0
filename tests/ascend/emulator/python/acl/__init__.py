"""The part of pyACL, which CANN installs, that the plugin imports."""

import os

from . import rt as rt


def get_soc_name():
    """The name of the chip, which Ray asks for, too."""
    return os.environ.get("EMULATOR_SOC", "Ascend910B3")
