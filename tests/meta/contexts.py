"""A pytest plugin that tells coverage which test file is at work, so that one run shows what each file covers.

Used by test_coverage.py under `coverage run`. The core is imported before any test file is, so that its module-level
lines count for all; what a test file runs while it is being imported counts for that file.
"""

import importlib
import pkgutil
from collections.abc import Iterator

import coverage
import hypothesis
import pytest

import moongate.core

EVERYBODY = "import"


def switch(context: str) -> None:
    """Attribute what runs from here on to this context."""
    measuring = coverage.Coverage.current()
    if measuring is not None:
        measuring.switch_context(context)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    # tracing makes each example several times slower, which is no finding
    slow = hypothesis.HealthCheck.too_slow
    hypothesis.settings.register_profile(
        "traced", deadline=None, suppress_health_check=[slow], max_examples=50, derandomize=True
    )
    hypothesis.settings.load_profile("traced")
    switch(EVERYBODY)
    for module in pkgutil.walk_packages(moongate.core.__path__, "moongate.core."):
        importlib.import_module(module.name)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    if isinstance(collector, pytest.Module):
        switch(collector.path.name)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    switch(item.path.name)
    return (yield)
