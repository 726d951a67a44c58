"""The number of examples of property tests: one number per profile, none in a test.

`fast` is the default (`make test`). `ci` tries the same examples every time, so that a failure
there comes from the change and not from chance. `nightly` looks for rare cases.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A slow machine is not a fault of the code, so no example has a deadline.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", _COMMON, max_examples=20)
settings.register_profile("ci", _COMMON, max_examples=60, derandomize=True, database=None)
settings.register_profile("nightly", _COMMON, max_examples=500)


def fewer_examples(divisor: int) -> int:
    """Return the profile's number of examples divided by `divisor`, at least 1.

    For tests in which one example costs as much as a whole run of another.
    """
    return max(1, settings().max_examples // divisor)
