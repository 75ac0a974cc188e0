"""What holds for every test: it draws the same cases in each run."""

import contextlib

with contextlib.suppress(ImportError):  # some environments of tests have none
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "same",
        derandomize=True,  # to search for others: --hypothesis-profile=default
        database=None,
        deadline=None,  # a busy machine is no failure
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("same")
