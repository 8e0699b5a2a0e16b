"""How thorough property tests are: HYPOTHESIS_PROFILE=quick while typing, nightly when there is time."""

import os

from hypothesis import settings

# a shared machine may stall for longer than any deadline; figures are the bench's business
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("normal", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "normal"))
