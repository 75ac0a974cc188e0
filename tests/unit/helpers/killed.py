"""The command line, killed with SIGKILL at one of its effects."""

COPIES = {"shutil.copyfile", "os.remove"}
ALL = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "subprocess.Popen"}


def killer(events: set[str]) -> str:
    """A program that dies before the n-th of these events, else says how many came."""
    return f"""
import os, signal, sys
from balance_tools.__main__ import main
last, seen = int(sys.argv[1]), 0
def hook(event, arguments):
    global seen
    if event in {events!r}:
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
code = main(sys.argv[2:])
print(seen)
sys.exit(code)
"""
