"""What holds for every test: no draw of chance, and no proxy before our own servers."""

import contextlib
import os

with contextlib.suppress(ImportError):  # some environments of tests have none
    from hypothesis import settings

    # A first run is no search: that is --hypothesis-profile=default.
    settings.register_profile("same", derandomize=True, deadline=None, database=None)
    settings.load_profile("same")

for name in ("NO_PROXY", "no_proxy"):
    names = (os.environ.get(name), "127.0.0.1", "localhost")
    os.environ[name] = ",".join(filter(None, names))
