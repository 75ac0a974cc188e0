"""The command line, killed with SIGKILL at one of its effects."""

from __future__ import annotations

# Its own process dies at the n-th rename, removal, new folder or program. The number
# of all of them is the last line of the output.
KILLER = """
import os, signal, sys
from balance_tools.__main__ import main
EFFECTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "subprocess.Popen"}
last, seen = int(sys.argv[1]), 0
def hook(event, arguments):
    global seen
    if event in EFFECTS:
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
code = main(sys.argv[2:])
print(seen)
sys.exit(code)
"""
