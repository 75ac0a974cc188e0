"""The part of pyACL, which CANN installs, that the plugin imports."""

from . import rt as rt
