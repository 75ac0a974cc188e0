"""The one exception of the tools: a sentence for the person at the terminal."""


class ToolError(Exception):
    """Something the user can fix.

    The message names the file or flag first, says what was expected and found, and
    what to do next. The command line prints it without a traceback and exits with 1.
    """
