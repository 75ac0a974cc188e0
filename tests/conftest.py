"""What holds for every test: it draws the same cases in each run."""

import contextlib

with contextlib.suppress(ImportError):  # some environments of tests have none
    from hypothesis import settings

    # To search for others: --hypothesis-profile=default.
    settings.register_profile("same", derandomize=True, deadline=None, database=None)
    settings.load_profile("same")
